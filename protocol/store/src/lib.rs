//! Put and get by name: S3 and local disk behind one trait, and a fetcher that trusts nobody.
