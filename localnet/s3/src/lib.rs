#![doc = include_str!("../README.md")]

pub mod admin;
mod faults;
mod objects;
mod service;
mod stall;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use futures::future::BoxFuture;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use s3s::service::S3Service;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

pub use faults::InvalidFaults;
pub use stall::STALL_MAX;
pub use store::faults::{Faults, Rate};

use objects::Objects;
use stall::Unstalled;
use store::Credentials;
use store::faults::FaultInjector;

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Address of the S3 port. Port 0 selects a free port: see [`S3Server::address`].
    pub listen: SocketAddr,
    /// Directory of the objects; `None`: a temporary one, removed with the server.
    pub data_dir: Option<PathBuf>,
    pub buckets: Vec<BucketConfig>,
    /// Settings of fault injection from other processes.
    pub admin: Option<AdminConfig>,
    /// Maximum size of one object.
    pub object_bytes_max: u64,
}

/// A bucket and the only key that may write to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketConfig {
    pub name: String,
    pub credentials: Credentials,
}

/// Settings of the admin port, on a loopback address only.
#[derive(Clone)]
pub struct AdminConfig {
    pub listen: SocketAddr,
    /// Value of [`admin::TOKEN_HEADER`]. It keeps out web pages, which can reach loopback ports too.
    pub token: String,
}

impl std::fmt::Debug for AdminConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminConfig").field("listen", &self.listen).finish_non_exhaustive()
    }
}

impl ServerConfig {
    /// Returns settings with buckets in a temporary directory, at a free port of this machine.
    pub fn temporary(buckets: Vec<BucketConfig>) -> ServerConfig {
        ServerConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            data_dir: None,
            buckets,
            admin: None,
            object_bytes_max: 5 << 30,
        }
    }
}

impl BucketConfig {
    pub fn new(
        name: impl Into<String>,
        access_key: impl Into<String>,
        secret_key: impl Into<String>,
    ) -> BucketConfig {
        let credentials = Credentials { access_key: access_key.into(), secret_key: secret_key.into() };
        BucketConfig { name: name.into(), credentials }
    }
}

/// Error of a server's start or of a change of its buckets.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("{address} is taken by another program: stop that program, or choose another port")]
    PortTaken { address: SocketAddr },
    #[error("cannot listen at {address}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("{path} is not the directory of a store: {why}. Choose an empty directory")]
    ForeignDirectory { path: PathBuf, why: String },
    #[error("{path} is in use by another server")]
    DirectoryInUse { path: PathBuf },
    #[error("cannot use the directory {path}")]
    Directory { path: PathBuf, source: io::Error },
    #[error("{name:?} cannot be a bucket: {why}")]
    BadBucket { name: String, why: &'static str },
    #[error("the admin port needs a loopback address, and {address} is none")]
    AdminNotLocal { address: SocketAddr },
}

/// The server has no such bucket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no bucket {0:?}")]
pub struct UnknownBucket(pub String);

/// The traffic of one bucket, in object contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketTraffic {
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// Authorised requests.
    pub requests: u64,
    /// Requests refused because of their key or operation. Requests with a wrong signature are not counted.
    pub refused: u64,
}

/// State that the parts of a server share.
struct State {
    buckets: RwLock<BTreeMap<String, Arc<BucketState>>>,
    objects: Objects,
}

struct BucketState {
    credentials: Credentials,
    faults: FaultInjector,
    traffic: store::Traffic,
    requests: std::sync::atomic::AtomicU64,
    refused: std::sync::atomic::AtomicU64,
}

/// A running server. Dropping it stops it immediately; [`S3Server::shutdown`] finishes the requests in progress.
pub struct S3Server {
    state: Arc<State>,
    s3: Port,
    admin: Option<Port>,
}

/// A listening socket and the task that serves it.
struct Port {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

/// Maximum number of concurrent connections per port.
pub const CONNECTIONS_MAX: usize = 1024;
/// Send buffer of a connection in the kernel. The kernel's own choice is megabytes over loopback, so readers that read
/// nothing would cost gigabytes.
const SEND_BUFFER_BYTES: u32 = 256 << 10;
/// Maximum wait of a shutdown for requests in progress.
const GRACE: Duration = Duration::from_secs(5);

impl S3Server {
    /// Locks the directory, binds the ports and serves until dropped.
    ///
    /// # Errors
    /// If a bucket is invalid, a port is taken, the admin address is not loopback, or the directory is unusable.
    pub fn start(config: ServerConfig) -> BoxFuture<'static, Result<S3Server, ServerError>> {
        Box::pin(S3Server::open(config))
    }

    async fn open(config: ServerConfig) -> Result<S3Server, ServerError> {
        let mut buckets = BTreeMap::new();
        config.buckets.iter().try_for_each(|bucket| add(&mut buckets, bucket))?;
        if let Some(admin) = &config.admin
            && !admin.listen.ip().is_loopback()
        {
            return Err(ServerError::AdminNotLocal { address: admin.listen });
        }
        // Bind the port first: a second server on the same port must not touch the directory.
        let listener = listen(config.listen).await?;
        let admin = match config.admin.clone() {
            Some(AdminConfig { listen: address, token }) => Some((listen(address).await?, token)),
            None => None,
        };
        let state = Arc::new(State { buckets: RwLock::new(buckets), objects: Objects::open(&config)? });
        let s3 = Port::serve(listener, service::s3(state.clone()))?;
        let serve_admin =
            |(listener, token): (_, String)| Port::serve(listener, admin::service(state.clone(), &token));
        let admin = admin.map(serve_admin).transpose()?;
        Ok(S3Server { state, s3, admin })
    }

    pub fn address(&self) -> SocketAddr {
        self.s3.address
    }

    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|port| port.address)
    }

    /// Returns the endpoint for [`store::S3Settings`].
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.s3.address)
    }

    /// Returns the base URL for readers.
    pub fn base_url(&self, bucket: &str) -> String {
        format!("http://{}/{bucket}", self.s3.address)
    }

    /// Adds a bucket while the server runs. The same bucket may be added again.
    ///
    /// # Errors
    /// If the bucket is invalid, conflicts with another one, or its directory cannot be made.
    pub fn add_bucket(&self, bucket: &BucketConfig) -> Result<(), ServerError> {
        let mut buckets = self.state.buckets.write().unwrap_or_else(PoisonError::into_inner);
        if buckets.get(&bucket.name).is_some_and(|known| known.credentials == bucket.credentials) {
            return Ok(());
        }
        let mut with = buckets.clone();
        add(&mut with, bucket)?;
        self.state.objects.add_bucket(&bucket.name)?;
        *buckets = with;
        Ok(())
    }

    /// Replaces the faults of a bucket. `Faults::default()` ends them.
    ///
    /// # Errors
    /// If there is no such bucket.
    pub fn inject(&self, bucket: &str, faults: Faults) -> Result<(), UnknownBucket> {
        self.state.bucket(bucket)?.faults.inject(faults);
        Ok(())
    }

    /// Returns the remaining faults of a bucket.
    ///
    /// # Errors
    /// If there is no such bucket.
    pub fn faults(&self, bucket: &str) -> Result<Faults, UnknownBucket> {
        Ok(self.state.bucket(bucket)?.faults.remaining())
    }

    pub fn traffic(&self, bucket: &str) -> Result<BucketTraffic, UnknownBucket> {
        Ok(self.state.bucket(bucket)?.totals())
    }

    /// Stops accepting requests, and waits a few seconds for those in progress.
    pub async fn shutdown(self) {
        let S3Server { s3, admin, .. } = self;
        if let Some(admin) = admin {
            admin.shut().await;
        }
        s3.shut().await;
    }
}

impl State {
    fn bucket(&self, name: &str) -> Result<Arc<BucketState>, UnknownBucket> {
        self.buckets().get(name).cloned().ok_or_else(|| UnknownBucket(name.to_owned()))
    }

    fn buckets(&self) -> RwLockReadGuard<'_, BTreeMap<String, Arc<BucketState>>> {
        self.buckets.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BucketState {
    fn totals(&self) -> BucketTraffic {
        use std::sync::atomic::Ordering::Relaxed;
        let traffic = self.traffic.totals();
        BucketTraffic {
            received_bytes: traffic.up_bytes,
            sent_bytes: traffic.down_bytes,
            requests: self.requests.load(Relaxed),
            refused: self.refused.load(Relaxed),
        }
    }
}

/// Checks that a bucket may have this name.
///
/// # Errors
/// If the name is not 3 to 63 lower-case letters, digits and hyphens.
pub fn check_bucket_name(name: &str) -> Result<(), ServerError> {
    if s3s::path::check_bucket_name(name) {
        return Ok(());
    }
    let why = "a name has 3 to 63 lower-case letters, digits and hyphens";
    Err(ServerError::BadBucket { name: name.to_owned(), why })
}

/// Adds a bucket. Its name and access key must be unique.
fn add(buckets: &mut BTreeMap<String, Arc<BucketState>>, bucket: &BucketConfig) -> Result<(), ServerError> {
    let BucketConfig { name, credentials } = bucket;
    check_bucket_name(name)?;
    let bad = |why| ServerError::BadBucket { name: name.clone(), why };
    if credentials.access_key.is_empty() || credentials.secret_key.is_empty() {
        return Err(bad("it needs an access key and a secret"));
    }
    if buckets.contains_key(name) {
        return Err(bad("there are two of that name"));
    }
    if buckets.values().any(|other| other.credentials.access_key == credentials.access_key) {
        return Err(bad("another bucket has the same access key"));
    }
    let state = BucketState {
        credentials: credentials.clone(),
        faults: FaultInjector::default(),
        traffic: store::Traffic::default(),
        requests: Default::default(),
        refused: Default::default(),
    };
    buckets.insert(name.clone(), Arc::new(state));
    Ok(())
}

async fn listen(address: SocketAddr) -> Result<TcpListener, ServerError> {
    let bind = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // Like `TcpListener::bind`. Connections inherit both options.
        #[cfg(unix)]
        socket.set_reuseaddr(true)?;
        socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
        socket.bind(address)?;
        socket.listen(CONNECTIONS_MAX as u32)
    };
    bind().map_err(|source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => ServerError::PortTaken { address },
        _ => ServerError::Listen { address, source },
    })
}

impl Port {
    fn serve(listener: TcpListener, service: S3Service) -> Result<Port, ServerError> {
        let address = listener
            .local_addr()
            .map_err(|source| ServerError::Listen { address: SocketAddr::from(([0, 0, 0, 0], 0)), source })?;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(accept(listener, service, stopped));
        Ok(Port { address, stop: Some(stop), task })
    }

    async fn shut(mut self) {
        if let Some(stop) = self.stop.take() {
            // An error means that the task has already ended.
            let _ = stop.send(());
        }
        let _ = (&mut self.task).await;
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, service: S3Service, mut stopped: oneshot::Receiver<()>) {
    let mut http = Builder::new(TokioExecutor::new()).http1_only();
    http.http1().timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(30));
    let graceful = GracefulShutdown::new();
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // A set, so that connections end with the server.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Usually the process is out of file descriptors until a connection ends.
                    tracing::warn!(%error, "could not accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            Some(_) = connections.join_next() => continue,
            _ = &mut stopped => break,
        };
        let Ok(permit) = room.clone().try_acquire_owned() else {
            tracing::warn!("too many connections, one was closed");
            continue;
        };
        // Messages are complete, and the client waits for each answer.
        let _ = stream.set_nodelay(true);
        let connection =
            http.serve_connection(TokioIo::new(Unstalled::new(stream)), service.clone()).into_owned();
        let connection = graceful.watch(connection);
        connections.spawn(async move {
            let _permit = permit;
            if let Err(error) = connection.await {
                tracing::debug!(error, "a connection ended badly");
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(GRACE, graceful.shutdown()).await.is_err() {
        tracing::warn!(left = connections.len(), "the shutdown cut off requests");
    }
}
