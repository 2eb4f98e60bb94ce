//! NCCL: NVIDIA's library for exchanges between GPUs (ADR 0072).
//!
//! The library is loaded on demand, so a program needs it neither to be built nor to start. `cudarc` searches for
//! other names than that of the packages, `libnccl.so.2`, and panics if it does not find them.
//!
//! **Waiting.** Communicators do not block (`ncclConfig_t::blocking`): each call starts an operation, and
//! [`Communicator`] polls until it is done. Between polls it calls the caller's [`Watch`], which fails once a rank is
//! lost or the deadline has passed. A failed communicator is aborted, which ends its work on the GPU.
//!
//! **Sums.** NCCL only moves values, by grouped sends and receives; the receiver adds them in a fixed order.

use crate::{
    Device, DeviceName, EngineKind, ModelError,
    collective::error::{CollectiveError, Watch},
};
use std::{
    ffi::{CStr, OsString, c_char, c_int, c_uint, c_void},
    fmt,
    mem::transmute,
    path::{Path, PathBuf},
    ptr::NonNull,
    sync::OnceLock,
    time::Duration,
};

/// Environment variable with the path of the library's file. If set, no other file is tried.
pub const VARIABLE: &str = "METTLE_NCCL";
/// File name of the library in packages.
pub const NAME: &str = "libnccl.so.2";
/// Oldest supported version: 2.27, the first that NVIDIA built for CUDA 13.
const VERSION_MIN: Version = Version(22_700);
/// Maximum time for a GPU to stop after an abort.
pub const STOP_WITHIN: Duration = Duration::from_secs(10);
/// Interval between polls of a call.
const LOOK: Duration = Duration::from_micros(20);

const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;
/// `ncclFloat32`
const F32: c_int = 7;

/// Reason why NCCL cannot be used, or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NcclError {
    #[error("ranks on {device} cannot exchange by NCCL: {why}")]
    Device { device: Device, why: &'static str },
    #[error(
        "NCCL cannot be loaded ({tried}): install it (pip install nvidia-nccl-cu13) and name its file in {VARIABLE}, or its directory in LD_LIBRARY_PATH"
    )]
    NotFound { tried: String },
    #[error("{variable} is set, which {what}: unset it, or set rank_exchange = \"tcp\" under [train]")]
    Variable { variable: &'static str, what: &'static str },
    #[error("NCCL in {path} is version {version}, and {VERSION_MIN} is needed: install a newer one")]
    TooOld { path: String, version: Version },
    #[error("{path} is no NCCL: it has no {symbol}")]
    Foreign { path: String, symbol: String },
    #[error("NCCL failed while {doing}: {why}")]
    Failed { doing: &'static str, why: String },
    /// A rank was lost, or the deadline has passed.
    #[error(transparent)]
    Ended(#[from] CollectiveError),
}

impl From<NcclError> for ModelError {
    fn from(error: NcclError) -> ModelError {
        ModelError::Ranks { why: error.to_string() }
    }
}

/// Version number as in NCCL: 10,000 · major + 100 · minor + patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(c_int);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0 / 10_000, self.0 / 100 % 100, self.0 % 100)
    }
}

/// Identifier of one communicator (`ncclUniqueId`), created by rank 0 for all ranks.
///
/// It contains the address of rank 0 and a secret number, so it is not printed.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct UniqueId([u8; UniqueId::BYTES]);

impl UniqueId {
    pub const BYTES: usize = 128;

    /// Returns `None` unless there are exactly [`BYTES`](Self::BYTES).
    pub fn from_bytes(bytes: &[u8]) -> Option<UniqueId> {
        bytes.try_into().ok().map(UniqueId)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId")
    }
}

/// A rank of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    pub id: UniqueId,
    pub rank: usize,
    pub ranks: usize,
}

/// First fields of `ncclConfig_t`, as of NCCL 2.14. The version determines the fields.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    /// Ignored for this version; without it the struct would end in padding.
    cluster_size: c_int,
}

type Handle = *mut c_void;
type Status = c_int;

/// Declares functions of `nccl.h`, and looks all of them up in a file.
macro_rules! functions {
    ($($field:ident = $symbol:literal: $type:ty,)*) => {
        struct Functions {
            $($field: $type,)*
        }

        impl Functions {
            fn find(file: &loader::File, path: &Path) -> Result<Functions, NcclError> {
                let find = |symbol: &CStr| {
                    let text = || symbol.to_string_lossy().into_owned();
                    file.symbol(symbol)
                        .ok_or_else(|| NcclError::Foreign { path: path.display().to_string(), symbol: text() })
                };
                Ok(Functions {
                    // SAFETY: the symbol is the address of a function, and NCCL's function of this name has this type.
                    $($field: unsafe { transmute::<NonNull<c_void>, $type>(find($symbol)?) },)*
                })
            }
        }
    };
}

functions! {
    get_version = c"ncclGetVersion": unsafe extern "C" fn(*mut c_int) -> Status,
    get_unique_id = c"ncclGetUniqueId": unsafe extern "C" fn(*mut UniqueId) -> Status,
    error_string = c"ncclGetErrorString": unsafe extern "C" fn(Status) -> *const c_char,
    last_error = c"ncclGetLastError": unsafe extern "C" fn(Handle) -> *const c_char,
    init = c"ncclCommInitRankConfig":
        unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int, *mut Config) -> Status,
    async_error = c"ncclCommGetAsyncError": unsafe extern "C" fn(Handle, *mut Status) -> Status,
    group_start = c"ncclGroupStart": unsafe extern "C" fn() -> Status,
    group_end = c"ncclGroupEnd": unsafe extern "C" fn() -> Status,
    send = c"ncclSend":
        unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Handle, *mut c_void) -> Status,
    receive = c"ncclRecv":
        unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Handle, *mut c_void) -> Status,
    abort = c"ncclCommAbort": unsafe extern "C" fn(Handle) -> Status,
}

/// The loaded library. It is never unloaded.
pub struct Library {
    path: PathBuf,
    version: Version,
    functions: Functions,
}

/// Returns the library for ranks on this device.
///
/// # Errors
/// If the device does not support NCCL, or an NCCL variable would break the exchange; or same as [`Library::open`].
pub fn library_for(device: Device) -> Result<&'static Library, NcclError> {
    if let Some(why) = refusal(device, cfg!(feature = "cuda")) {
        return Err(NcclError::Device { device, why });
    }
    forbidden(|name| std::env::var_os(name))?;
    Library::open()
}

/// Refuses environment variables by which NCCL would override this module's settings.
fn forbidden(variable: impl Fn(&str) -> Option<OsString>) -> Result<(), NcclError> {
    const ALL: [(&str, &str); 2] = [
        ("NCCL_COMM_BLOCKING", "would let a lost rank hold up the others for ever"),
        ("NCCL_COMM_ID", "would let strangers into every communicator"),
    ];
    match ALL.into_iter().find(|(name, _)| variable(name).is_some()) {
        Some((variable, what)) => Err(NcclError::Variable { variable, what }),
        None => Ok(()),
    }
}

/// Returns the reason why ranks on this device cannot exchange by NCCL, whatever is installed.
fn refusal(device: Device, has_cuda: bool) -> Option<&'static str> {
    match (device.name, device.engine()) {
        (DeviceName::Cpu | DeviceName::Vulkan(_), _) => Some(
            "it is for GPUs of NVIDIA; set device = \"cuda:all\", or rank_exchange = \"tcp\" under [train]",
        ),
        (DeviceName::Cuda(_), EngineKind::Burn) => {
            Some("Burn's engine has none; use the fused engine, or set rank_exchange = \"tcp\" under [train]")
        }
        (DeviceName::Cuda(_), EngineKind::Fused) if !has_cuda => {
            Some("this program was built without CUDA: build with --features cuda (docs/gpu.md)")
        }
        (DeviceName::Cuda(_), EngineKind::Fused) => None,
    }
}

impl Library {
    /// Loads the library: the file that `METTLE_NCCL` names, otherwise `libnccl.so.2` from the system's loader or from
    /// the Python environment `VIRTUAL_ENV`.
    ///
    /// # Errors
    /// If it is not found, too old, or not NCCL.
    pub fn open() -> Result<&'static Library, NcclError> {
        static OPENED: OnceLock<Library> = OnceLock::new();
        match OPENED.get() {
            Some(library) => Ok(library),
            None => {
                let loaded = Library::load(&candidates(|name| std::env::var_os(name)))?;
                Ok(OPENED.get_or_init(|| loaded))
            }
        }
    }

    fn load(candidates: &[PathBuf]) -> Result<Library, NcclError> {
        let mut tried = Vec::new();
        for path in candidates {
            match loader::open(path) {
                Ok(file) => return Library::of(path, file),
                Err(why) => tried.push(why),
            }
        }
        Err(NcclError::NotFound { tried: tried.join("; ") })
    }

    fn of(path: &Path, file: loader::File) -> Result<Library, NcclError> {
        let functions = Functions::find(&file, path)?;
        let mut number = 0;
        // SAFETY: the call writes one number.
        let status = unsafe { (functions.get_version)(&mut number) };
        let version = Version(number);
        let library = Library { path: path.to_owned(), version, functions };
        library.check("reading its version", std::ptr::null_mut(), status)?;
        match version < VERSION_MIN {
            true => Err(NcclError::TooOld { path: path.display().to_string(), version }),
            false => Ok(library),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn version(&self) -> Version {
        self.version
    }

    /// Creates an id. An NCCL thread then listens for the ranks with this id until all have connected; no NCCL call
    /// can stop it. Create an id only when all ranks are ready (ADR 0072).
    ///
    /// # Errors
    /// If NCCL finds no network interface to listen on.
    pub fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = UniqueId([0; UniqueId::BYTES]);
        // SAFETY: the call writes an id.
        let status = unsafe { (self.functions.get_unique_id)(&mut id) };
        self.check("making an id", std::ptr::null_mut(), status)?;
        Ok(id)
    }

    fn check(&self, doing: &'static str, handle: Handle, status: Status) -> Result<(), NcclError> {
        if matches!(status, SUCCESS | IN_PROGRESS) {
            return Ok(());
        }
        let text = |text: *const c_char| match text.is_null() {
            true => String::new(),
            // SAFETY: NCCL's texts end in a zero byte; this thread reads them before its next call.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned(),
        };
        // SAFETY: the function accepts any status.
        let kind = text(unsafe { (self.functions.error_string)(status) });
        // SAFETY: the function accepts a communicator or null.
        let last = text(unsafe { (self.functions.last_error)(handle) });
        let why = if last.is_empty() { kind } else { format!("{kind}; {last}") };
        Err(NcclError::Failed { doing, why })
    }
}

/// Returns the files to try, in order.
fn candidates(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(file) = set(VARIABLE) {
        return vec![file];
    }
    let pythons = set("VIRTUAL_ENV").and_then(|environment| std::fs::read_dir(environment.join("lib")).ok());
    let mut wheels: Vec<PathBuf> = pythons
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("site-packages/nvidia/nccl/lib").join(NAME)))
        .filter(|file| file.is_file())
        .collect();
    wheels.sort();
    [PathBuf::from(NAME)].into_iter().chain(wheels).collect()
}

#[cfg(unix)]
mod loader {
    use super::{CStr, NonNull, Path, c_void};
    use std::{ffi::CString, os::unix::ffi::OsStrExt as _};

    pub struct File(NonNull<c_void>);

    /// Opens a library. The loader's error text names the file.
    pub fn open(path: &Path) -> Result<File, String> {
        let name =
            CString::new(path.as_os_str().as_bytes()).map_err(|_| "a name with a zero byte".to_owned())?;
        // SAFETY: the name ends in a zero byte. The libraries' initialisers are those of NCCL.
        let file = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(file).map(File).ok_or_else(|| {
            // SAFETY: called after the call above, on the same thread.
            let why = unsafe { libc::dlerror() };
            match why.is_null() {
                true => path.display().to_string(),
                // SAFETY: the loader's text lasts until its next call on this thread.
                false => unsafe { CStr::from_ptr(why) }.to_string_lossy().into_owned(),
            }
        })
    }

    impl File {
        pub fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
            // SAFETY: the file is never closed.
            NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
        }
    }
}

#[cfg(not(unix))]
mod loader {
    use super::{CStr, NonNull, Path, c_void};

    pub struct File(std::convert::Infallible);

    pub fn open(path: &Path) -> Result<File, String> {
        Err(format!("{}: NVIDIA has no NCCL for this system", path.display()))
    }

    impl File {
        pub fn symbol(&self, _: &CStr) -> Option<NonNull<c_void>> {
            match self.0 {}
        }
    }
}

/// Values in a GPU's memory that are sent to or received from another rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    pub peer: usize,
    /// Address of the first `f32`.
    pub address: u64,
    pub values: usize,
}

/// Connection of a rank's GPU to those of the other ranks. Dropping it aborts running work without waiting for other
/// ranks.
pub struct Communicator {
    library: &'static Library,
    handle: Handle,
}

// SAFETY: NCCL allows a communicator on any thread, one at a time, which `&mut self` ensures.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Connects the GPU whose CUDA context is this thread's.
    ///
    /// # Errors
    /// If there is no GPU, a rank is lost, or NCCL fails.
    pub fn connect(
        library: &'static Library,
        membership: &Membership,
        watch: &mut Watch<'_>,
    ) -> Result<Communicator, NcclError> {
        const MAGIC: c_uint = 0xcafe_beef;
        let Membership { id, rank, ranks } = *membership;
        let [rank, ranks] = [rank, ranks].map(|number| c_int::try_from(number).unwrap_or(c_int::MAX));
        let mut config = Config {
            size: size_of::<Config>(),
            magic: MAGIC,
            version: 21_400,
            blocking: 0,
            cluster_size: c_int::MIN,
        };
        let mut communicator = Communicator { library, handle: std::ptr::null_mut() };
        // SAFETY: the config's version determines its fields, and both pointers are valid for the call.
        let status =
            unsafe { (library.functions.init)(&mut communicator.handle, ranks, id, rank, &mut config) };
        communicator.library.check("connecting GPUs", communicator.handle, status)?;
        communicator.settle("connecting GPUs", watch)?;
        Ok(communicator)
    }

    /// Queues all these messages in the stream. Between two ranks, messages arrive in the order of the lists.
    ///
    /// # Safety
    /// Each address must have its number of values in the memory of this communicator's GPU, exclusively for
    /// `receives`, until the stream has finished. The stream must belong to this GPU, whose context must be current.
    ///
    /// # Errors
    /// If a rank is lost, or NCCL fails.
    pub unsafe fn exchange(
        &mut self,
        sends: &[Message],
        receives: &[Message],
        stream: *mut c_void,
        watch: &mut Watch<'_>,
    ) -> Result<(), NcclError> {
        const DOING: &str = "exchanging between GPUs";
        let Functions { group_start, group_end, send, receive, .. } = &self.library.functions;
        let check = |status| self.library.check(DOING, self.handle, status);
        let rank = |peer| c_int::try_from(peer).unwrap_or(c_int::MAX);
        // SAFETY: the caller upholds the contract above. Every group that starts also ends.
        let (queued, ended) = unsafe {
            check(group_start())?;
            let queued = sends
                .iter()
                .map(|&Message { peer, address, values }| {
                    check(send(address as *const c_void, values, F32, rank(peer), self.handle, stream))
                })
                .chain(receives.iter().map(|&Message { peer, address, values }| {
                    check(receive(address as *mut c_void, values, F32, rank(peer), self.handle, stream))
                }))
                .collect::<Result<(), NcclError>>();
            (queued, check(group_end()))
        };
        queued.and(ended)?;
        // Until then the stream may be incomplete.
        self.settle(DOING, watch)
    }

    /// Waits until `is_done` returns true. Fails once a rank is lost or NCCL has an error.
    ///
    /// # Errors
    /// If a rank is lost, or NCCL or `is_done` fails.
    pub fn wait(
        &mut self,
        watch: &mut Watch<'_>,
        mut is_done: impl FnMut() -> Result<bool, NcclError>,
    ) -> Result<(), NcclError> {
        while !is_done()? {
            self.settle("exchanging between GPUs", watch)?;
            pause(watch)?;
        }
        Ok(())
    }

    /// Waits until the last call is done.
    fn settle(&mut self, doing: &'static str, watch: &mut Watch<'_>) -> Result<(), NcclError> {
        loop {
            let mut state = SUCCESS;
            // SAFETY: the call writes one status.
            let status = unsafe { (self.library.functions.async_error)(self.handle, &mut state) };
            self.library.check(doing, self.handle, status)?;
            self.library.check(doing, self.handle, state)?;
            if state == SUCCESS {
                return Ok(());
            }
            pause(watch)?;
        }
    }

    /// Aborts running work, also on the GPU, and makes further exchanges impossible. Returns whether NCCL has ended
    /// within this time. The abort waits for the GPU, so it runs on a separate thread.
    pub fn abort(&mut self, within: Duration) -> bool {
        let handle = std::mem::replace(&mut self.handle, std::ptr::null_mut());
        if handle.is_null() {
            return true;
        }
        let (abort, handle) = (self.library.functions.abort, Aborted(handle));
        let (done, ended) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name("abort".into()).spawn(move || {
            let Aborted(handle) = { handle };
            // SAFETY: nothing else uses the handle any more. A failure is ignored.
            let _ = unsafe { abort(handle) };
            let _ = done.send(());
        });
        // Without a thread the communicator leaks.
        thread.is_ok() && ended.recv_timeout(within).is_ok()
    }
}

/// Handle of a communicator that only its abort still uses.
struct Aborted(Handle);

// SAFETY: as for `Communicator`.
unsafe impl Send for Aborted {}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.abort(STOP_WITHIN);
    }
}

fn pause(watch: &mut Watch<'_>) -> Result<(), NcclError> {
    watch()?;
    std::thread::sleep(LOOK);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn device(name: &str) -> Device {
        name.parse().unwrap()
    }

    #[test]
    fn only_fused_engines_on_cuda_exchange_by_nccl() {
        assert_eq!(refusal(device("cuda:0"), true), None);
        assert_eq!(refusal(device("cuda:3,fused,bf16"), true), None);
        for (name, has_cuda, says) in [
            ("cpu", true, "for GPUs of NVIDIA"),
            ("vulkan", true, "for GPUs of NVIDIA"),
            ("cuda:0,burn", true, "Burn's engine"),
            ("cuda:0", false, "built without CUDA"),
        ] {
            assert!(refusal(device(name), has_cuda).unwrap().contains(says), "{name}");
        }
        let refused = library_for(device("vulkan")).err().unwrap().to_string();
        assert!(refused.contains("ranks on vulkan cannot exchange by NCCL"), "{refused}");
    }

    #[test]
    fn variables_that_overrule_what_is_asked_for_are_refused() {
        assert_eq!(forbidden(|name| (name == "NCCL_DEBUG").then(|| "INFO".into())), Ok(()));
        for one in ["NCCL_COMM_BLOCKING", "NCCL_COMM_ID"] {
            let refused = forbidden(|name| (name == one).then(|| "1".into())).unwrap_err().to_string();
            assert!(refused.starts_with(one) && refused.contains("unset it"), "{refused}");
        }
    }

    #[test]
    fn the_variable_goes_before_the_loader_and_the_loader_before_a_python() {
        let directory = tempfile::tempdir().unwrap();
        let wheel = directory.path().join("lib/python3.12/site-packages/nvidia/nccl/lib").join(NAME);
        std::fs::create_dir_all(wheel.parent().unwrap()).unwrap();
        let found = |variables: &[(&str, &OsString)]| {
            let value =
                |name: &str| variables.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).clone());
            candidates(value)
        };
        let (python, file) = (directory.path().into(), OsString::from("/opt/libnccl.so"));
        assert_eq!(found(&[]), [PathBuf::from(NAME)]);
        assert_eq!(found(&[("VIRTUAL_ENV", &python)]), [PathBuf::from(NAME)]);
        std::fs::write(&wheel, "").unwrap();
        assert_eq!(found(&[("VIRTUAL_ENV", &python)]), [PathBuf::from(NAME), wheel]);
        assert_eq!(found(&[(VARIABLE, &file), ("VIRTUAL_ENV", &python)]), [PathBuf::from(&file)]);
        assert_eq!(found(&[(VARIABLE, &OsString::new())]), [PathBuf::from(NAME)]);
    }

    #[test]
    #[cfg(unix)]
    fn what_cannot_be_loaded_is_named_with_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let [absent, text] = ["absent.so", "text.so"].map(|name| directory.path().join(name));
        std::fs::write(&text, "no library").unwrap();
        let error = Library::load(&[absent.clone(), text.clone()]).err().unwrap().to_string();
        for says in
            [absent.to_str().unwrap(), text.to_str().unwrap(), "pip install nvidia-nccl-cu13", VARIABLE]
        {
            assert!(error.contains(says), "{error}");
        }
        // A library other than NCCL.
        #[cfg(target_os = "linux")]
        {
            let error = Library::load(&["libc.so.6".into()]).err().unwrap();
            let (path, symbol) = ("libc.so.6".to_owned(), "ncclGetVersion".to_owned());
            assert_eq!(error, NcclError::Foreign { path, symbol });
        }
    }

    #[test]
    fn an_id_has_128_bytes_and_is_not_shown() {
        for bytes in [0, 127, 129] {
            assert_eq!(UniqueId::from_bytes(&vec![1; bytes]), None);
        }
        let id = UniqueId::from_bytes(&[7; UniqueId::BYTES]).unwrap();
        assert_eq!((id.as_bytes(), format!("{id:?}").as_str()), (&[7; 128][..], "UniqueId"));
        assert_eq!(Version(22_703).to_string(), "2.27.3");
    }

    #[test]
    #[ignore = "needs libnccl.so.2: METTLE_NCCL or the loader names it"]
    fn the_library_makes_ids() {
        let library = Library::open().unwrap_or_else(|error| panic!("{error}"));
        println!("{} is NCCL {}", library.path().display(), library.version());
        assert!(VERSION_MIN <= library.version());
        let [one, other] = [(); 2].map(|()| library.unique_id().unwrap());
        assert!(one != other && one.as_bytes().iter().any(|byte| *byte != 0));
    }

    /// Without a GPU a communicator fails at once with that reason; with one, the wait for absent ranks ends at the
    /// deadline.
    #[test]
    #[ignore = "needs libnccl.so.2: METTLE_NCCL or the loader names it"]
    fn a_communicator_without_a_gpu_or_the_other_rank_fails_with_the_reason() {
        let library = Library::open().unwrap_or_else(|error| panic!("{error}"));
        let membership = Membership { id: library.unique_id().unwrap(), rank: 0, ranks: 2 };
        let until = Instant::now() + Duration::from_secs(5);
        let stuck = CollectiveError::Stuck { doing: "connecting GPUs", seconds: 5 };
        let late = stuck.clone();
        let mut watch: Watch<'_> =
            Box::new(move || if Instant::now() < until { Ok(()) } else { Err(late.clone()) });
        let error = Communicator::connect(library, &membership, &mut watch).err().unwrap();
        println!("{error}");
        match error {
            NcclError::Failed { doing: "connecting GPUs", why } => assert!(!why.is_empty()),
            other => assert_eq!(other, NcclError::Ended(stuck)),
        }
        // Rank 1 is invalid in a communicator of one rank.
        let wrong = Membership { rank: 1, ranks: 1, ..membership };
        let error = Communicator::connect(library, &wrong, &mut watch).err().unwrap();
        assert!(matches!(error, NcclError::Failed { .. }), "{error}");
    }
}
