//! What no crate can test alone.
