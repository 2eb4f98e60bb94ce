//! The one TLS provider: `ring`. It compiles in seconds, needs no C toolchain beyond `cc`, and the chain client uses
//! it too.

use rustls::crypto::{CryptoProvider, ring};

/// Installs `ring` as the TLS provider of this process, unless there is one. Call it before an HTTP client is built.
pub fn install_provider() {
    if CryptoProvider::get_default().is_none() {
        // An error says that another thread was first.
        let _ = ring::default_provider().install_default();
    }
}
