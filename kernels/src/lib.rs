//! The same answer, faster: arrays in, arrays out.
