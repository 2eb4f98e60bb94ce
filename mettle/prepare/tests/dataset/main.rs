//! Datasets as they are prepared from texts: whole, in parts, cleaned, and in buckets.

mod bucket;
mod cleaning;
mod parts;
mod prepare;
