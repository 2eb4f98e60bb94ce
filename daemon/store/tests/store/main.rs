//! The stores, and what fetching and uploading do with faulty and hostile endpoints.

mod conformance;
mod faulty;
mod hostile;
