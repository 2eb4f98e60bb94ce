//! The only TLS provider: `ring`. It compiles in seconds, needs no C toolchain beyond `cc`, and is also used by the
//! chain client.

use rustls::crypto::{CryptoProvider, ring};

/// Installs `ring` as the TLS provider of this process, unless there is one. Must be called before an HTTP client is
/// built.
pub fn install_provider() {
    if CryptoProvider::get_default().is_none() {
        // An error means that another thread was first.
        let _ = ring::default_provider().install_default();
    }
}
