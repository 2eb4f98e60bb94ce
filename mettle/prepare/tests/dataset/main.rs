//! Datasets as they are prepared from texts: whole, cleaned, and joined from parts.

mod cleaning;
mod join;
mod prepare;
