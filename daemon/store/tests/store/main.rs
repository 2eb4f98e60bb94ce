//! The stores, and fetches and uploads with faulty and hostile endpoints.

mod conformance;
mod faulty;
mod hostile;
