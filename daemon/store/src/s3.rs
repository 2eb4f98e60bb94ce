//! A bucket at any S3-compatible provider.
//!
//! A miner whose upload silently retried for three minutes would miss its window without notice. So the number of
//! retries is small, and one deadline covers them all.

use protocol::ensure;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::{BackoffConfig, ClientOptions, RetryConfig};
use serde::Deserialize;
use url::Url;

pub use crate::object::S3Store;
use crate::{StoreError, Traffic, tls};

/// Maximum silence of the server during one request.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Time limit of a whole operation with all retries.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// Minimum rate of a large upload, which extends its time limit.
const UPLOAD_BYTES_PER_SECOND_MIN: u64 = 1 << 20;

/// Returns the time limit for an upload of `bytes`, with all retries, in a store with this deadline.
pub fn upload_deadline(deadline: Duration, bytes: u64) -> Duration {
    deadline.saturating_add(Duration::from_secs(bytes / UPLOAD_BYTES_PER_SECOND_MIN))
}

/// The key pair of a bucket. `Debug` omits the secret.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    pub access_key: String,
    pub secret_key: String,
}

/// A bucket, its keys, and the limits of its operations.
#[derive(Clone, Debug)]
pub struct S3Settings {
    /// `https://host[:port]`, without the bucket. With `http` the contents are not encrypted, but the secret is never
    /// sent.
    pub endpoint: String,
    pub bucket: String,
    pub credentials: Credentials,
    /// Time limit of a whole operation with all retries. An upload has one more second per MiB.
    pub deadline: Duration,
    /// Number of retries after the first request.
    pub retries: usize,
}

impl S3Settings {
    /// Creates settings with the default limits: 4 retries, [`DEADLINE`] in total.
    pub fn new(
        endpoint: impl Into<String>,
        bucket: impl Into<String>,
        credentials: Credentials,
    ) -> S3Settings {
        S3Settings {
            endpoint: endpoint.into(),
            bucket: bucket.into(),
            credentials,
            deadline: DEADLINE,
            retries: 4,
        }
    }

    /// Returns the public base URL of this bucket at a provider with path-style URLs.
    pub fn base_url(&self) -> String {
        format!("{}/{}", self.endpoint.trim_end_matches('/'), self.bucket)
    }
}

impl S3Store {
    /// Checks the settings and sends nothing. [`crate::check_bucket`] tests the bucket itself.
    ///
    /// # Errors
    /// If the endpoint or the name of the bucket is invalid.
    pub fn open(settings: &S3Settings) -> Result<S3Store, StoreError> {
        let wrong = |what: String| StoreError::Settings { what };
        let endpoint = Url::parse(&settings.endpoint)
            .map_err(|error| wrong(format!("the endpoint {:?} is not a URL: {error}", settings.endpoint)))?;
        let plain = match endpoint.scheme() {
            "http" => true,
            "https" => false,
            other => return Err(wrong(format!("the endpoint is {other}, not http or https"))),
        };
        ensure!(
            endpoint.username().is_empty() && endpoint.password().is_none(),
            wrong("the endpoint must not hold a credential".into())
        );
        ensure!(
            !settings.bucket.is_empty() && !settings.bucket.contains('/'),
            wrong(format!("{:?} cannot be the name of a bucket", settings.bucket))
        );
        ensure!(
            !settings.credentials.access_key.is_empty() && !settings.credentials.secret_key.is_empty(),
            wrong("the access key and its secret are both needed".into())
        );

        tls::install_provider();
        let client = ClientOptions::new()
            .with_allow_http(plain)
            // A machine on its own network may have no certificates.
            .with_no_system_certificates(plain)
            .with_connect_timeout(Duration::from_secs(5))
            .with_timeout_disabled()
            .with_read_timeout(SILENCE_MAX);
        let retry = RetryConfig {
            backoff: BackoffConfig { max_backoff: Duration::from_secs(2), ..BackoffConfig::default() },
            max_retries: settings.retries,
            retry_timeout: settings.deadline,
        };
        let backend = AmazonS3Builder::new()
            .with_endpoint(settings.endpoint.trim_end_matches('/'))
            .with_allow_http(plain)
            .with_virtual_hosted_style_request(false)
            .with_bucket_name(&settings.bucket)
            .with_region("us-east-1")
            .with_access_key_id(&settings.credentials.access_key)
            .with_secret_access_key(&settings.credentials.secret_key)
            .with_client_options(client)
            .with_retry(retry)
            .build()
            .map_err(|error| wrong(error.to_string()))?;

        Ok(S3Store {
            backend,
            describe: settings.base_url(),
            deadline: settings.deadline,
            traffic: Traffic::default(),
        })
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> S3Settings {
        let credentials = Credentials { access_key: "key".into(), secret_key: "hush".into() };
        S3Settings::new("http://127.0.0.1:9000", "bucket", credentials)
    }

    fn refused(change: impl Fn(&mut S3Settings)) -> String {
        let mut settings = settings();
        change(&mut settings);
        match S3Store::open(&settings) {
            Err(StoreError::Settings { what }) => what,
            Err(other) => panic!("another error: {other}"),
            Ok(_) => panic!("opened"),
        }
    }

    #[test]
    fn settings_that_cannot_work_are_refused_before_anything_is_sent() {
        assert!(S3Store::open(&settings()).is_ok());
        assert!(refused(|s| s.endpoint = "ftp://host".into()).contains("http or https"));
        assert!(refused(|s| s.endpoint = "not a url".into()).contains("is not a URL"));
        assert!(refused(|s| s.endpoint = "https://a:b@host".into()).contains("credential"));
        assert!(refused(|s| s.bucket = "a/b".into()).contains("bucket"));
        assert!(refused(|s| s.credentials.secret_key.clear()).contains("secret"));
    }

    #[test]
    fn a_secret_is_never_shown() {
        assert!(!format!("{:?}", settings()).contains("hush"));
    }
}
