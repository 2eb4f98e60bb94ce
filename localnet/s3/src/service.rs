//! The S3 operations and their access rules.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use reqwest::header::{HeaderMap, LOCATION};
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::checksum::ChecksumHasher;
use s3s::crypto::Checksum as _;
use s3s::dto::*;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use tokio::fs::File;
use tokio::io::AsyncSeekExt as _;

use super::objects::{ObjectError, Received, next_chunk};
use crate::State;
use store::Action;
use store::faults::{ReadFaults, flip_bit};

pub(super) fn s3(state: Arc<State>) -> S3Service {
    let mut service = S3ServiceBuilder::new(Operations {
        state: state.clone(),
        uploads: Uploads::default(),
        upload_number: AtomicU64::new(0),
    });
    // Without authentication, s3s skips the access checks too.
    service.set_auth(Keys { state: state.clone() });
    service.set_access(Gate { state });
    service.build()
}

/// Keys of the current buckets.
struct Keys {
    state: Arc<State>,
}

#[async_trait::async_trait]
impl S3Auth for Keys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        let buckets = self.state.buckets();
        let owned = buckets.values().find(|bucket| bucket.credentials.access_key == access_key);
        owned
            .map(|bucket| bucket.credentials.secret_key.as_str().into())
            .ok_or_else(|| s3_error!(NotSignedUp, "no bucket has this access key"))
    }
}

/// Access rule: a bucket's owner may use every served operation; any other client may read an object by its exact
/// name.
struct Gate {
    state: Arc<State>,
}

#[async_trait::async_trait]
impl S3Access for Gate {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        let bucket = cx.s3_path().get_bucket_name().and_then(|name| self.state.bucket(name).ok());
        let Some(bucket) = bucket else { return Err(s3_error!(AccessDenied)) };
        let operation = cx.s3_op().name();
        let action = action(operation);
        let read = matches!(operation, "GetObject" | "HeadObject");
        let owner = cx.credentials().is_some_and(|found| found.access_key == bucket.credentials.access_key);
        let may_write = owner && action.is_some() && !is_sigv2(cx);
        if !may_write && !read {
            bucket.refused.fetch_add(1, Ordering::Relaxed);
            return Err(s3_error!(AccessDenied));
        }
        bucket.requests.fetch_add(1, Ordering::Relaxed);
        let (unavailable, delay) =
            bucket.faults.draw(action.unwrap_or(Action::Read), cx.s3_path().get_object_key());
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if unavailable {
            return Err(s3_error!(SlowDown, "injected: unavailable"));
        }
        Ok(())
    }
}

/// Returns the action of an operation, if it is served. Copying is not: it would read a bucket that is not checked.
fn action(operation: &str) -> Option<Action> {
    Some(match operation {
        "GetObject" => Action::Read,
        "HeadObject" | "HeadBucket" => Action::LookUp,
        "DeleteObject" | "DeleteObjects" => Action::Delete,
        "ListObjectsV2" => Action::List,
        "PutObject"
        | "CreateMultipartUpload"
        | "UploadPart"
        | "CompleteMultipartUpload"
        | "AbortMultipartUpload" => Action::Write,
        _ => return None,
    })
}

/// Returns whether a request has an older signature, which covers less of a request than SigV4 does.
fn is_sigv2(cx: &S3AccessContext<'_>) -> bool {
    let header = cx.headers().get("authorization").is_some_and(|value| value.as_bytes().starts_with(b"AWS "));
    header || cx.uri().query().is_some_and(|query| query.contains("AWSAccessKeyId="))
}

type Answer<T> = S3Result<S3Response<T>>;

struct Operations {
    state: Arc<State>,
    uploads: Uploads,
    upload_number: AtomicU64,
}

/// Multipart uploads by id.
type Uploads = Arc<Mutex<BTreeMap<String, Upload>>>;

/// Maximum silence within an answer, because a client may abandon a longer one.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// A multipart upload. It is lost when the server stops, and the client's next part fails.
struct Upload {
    bucket: String,
    key: String,
    parts: BTreeMap<i32, Arc<Received>>,
    /// Time of the client's last request for it.
    used: Instant,
}

/// Maximum number of uploads, because some are never completed.
const UPLOADS_MAX: usize = 256;
/// Time after a client's last request until its upload and parts are dropped: the client was killed.
const UPLOAD_KEPT: Duration = Duration::from_secs(3600);
const PARTS_MAX: i32 = 10_000;
const PART_BYTES_MIN: u64 = 5 << 20;

impl Operations {
    fn bucket(&self, name: &str) -> S3Result<Arc<crate::BucketState>> {
        self.state.bucket(name).map_err(|_| s3_error!(NoSuchBucket))
    }

    fn uploads(&self) -> MutexGuard<'_, BTreeMap<String, Upload>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on the upload that a client names.
    fn upload<T>(
        &self,
        id: &str,
        bucket: &str,
        key: &str,
        work: impl FnOnce(&mut Upload) -> T,
    ) -> S3Result<T> {
        let mut uploads = self.uploads();
        let named = uploads.get_mut(id).filter(|upload| upload.bucket == bucket && upload.key == key);
        let used = |upload: &mut Upload| {
            upload.used = Instant::now();
            work(upload)
        };
        named.map(used).ok_or_else(|| s3_error!(NoSuchUpload))
    }

    /// Converts a time to the clock of the bucket.
    fn modified(&self, bucket: &str, modified: SystemTime) -> S3Result<Option<Timestamp>> {
        let skew = self.bucket(bucket)?.faults.clock_skew_seconds();
        let by = Duration::from_secs(skew.unsigned_abs());
        let skewed = if skew < 0 { modified.checked_sub(by) } else { modified.checked_add(by) };
        Ok(skewed.map(Timestamp::from))
    }

    /// Receives a whole body and checks its length and checksums against the client's. The result has no name yet.
    async fn receive(
        &self,
        bucket: &str,
        key: &str,
        body: Option<StreamingBlob>,
        length: Option<i64>,
        headers: &HeaderMap,
    ) -> S3Result<Received> {
        let state = self.bucket(bucket)?;
        if state.faults.is_full(key) {
            return Err(ObjectError::Full.into());
        }
        let mut incoming = self.state.objects.begin()?;
        let mut received = 0u64;
        let announced = announced(headers);
        let mut checks = hasher(&announced);
        let announced_md5 = text(headers, "content-md5");
        let mut md5 = announced_md5.as_ref().map(|_| s3s::crypto::Md5::new());
        if let Some(mut body) = body {
            while let Some(chunk) = body.next().await {
                // The body is truncated, or differs from the signed bytes.
                let chunk =
                    chunk.map_err(|error| S3Error::with_source(S3ErrorCode::IncompleteBody, error))?;
                state.traffic.add_up(chunk.len() as u64);
                received += chunk.len() as u64;
                checks.update(&chunk);
                if let Some(md5) = &mut md5 {
                    md5.update(&chunk);
                }
                incoming.write(&chunk).await?;
            }
        }
        if length.is_some_and(|length| u64::try_from(length) != Ok(received)) {
            return Err(s3_error!(IncompleteBody));
        }
        if md5.map(|md5| base64(md5.finalize().as_ref())) != announced_md5 {
            return Err(s3_error!(BadDigest, "the body does not have the announced MD5"));
        }
        if checks.finalize() != announced {
            return Err(s3_error!(BadDigest, "the body does not have the announced checksum"));
        }
        Ok(incoming.finish().await?)
    }

    fn answer(&self, bucket: &str, action: Action, key: &str) -> S3Result<()> {
        answer(&self.state, bucket, action, key)
    }
}

/// Fails if a fault drops the answer to a change that was made.
fn answer(state: &State, bucket: &str, action: Action, key: &str) -> S3Result<()> {
    let bucket = state.bucket(bucket).map_err(|_| s3_error!(NoSuchBucket))?;
    if bucket.faults.draw_answer_lost(action, key) {
        return Err(s3_error!(SlowDown, "injected: the answer is lost"));
    }
    Ok(())
}

#[async_trait::async_trait]
impl S3 for Operations {
    async fn head_bucket(&self, request: S3Request<HeadBucketInput>) -> Answer<HeadBucketOutput> {
        self.bucket(&request.input.bucket)?;
        Ok(S3Response::new(HeadBucketOutput::default()))
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> Answer<PutObjectOutput> {
        let input = request.input;
        unconditional(&input.if_match, &input.if_none_match)?;
        let body =
            self.receive(&input.bucket, &input.key, input.body, input.content_length, &request.headers);
        let etag = self.state.objects.place(&input.bucket, &input.key, body.await?)?.etag;
        self.answer(&input.bucket, Action::Write, &input.key)?;
        let output = PutObjectOutput { e_tag: Some(ETag::Strong(etag)), ..PutObjectOutput::default() };
        Ok(with_checksums(output, &request.headers))
    }

    async fn get_object(&self, request: S3Request<GetObjectInput>) -> Answer<GetObjectOutput> {
        let input = request.input;
        let state = self.bucket(&input.bucket)?;
        // Faults are drawn for existing objects only: a reader that is too early does not count as the first reader.
        let (object, mut file) = self.state.objects.read(&input.bucket, &input.key).await?;
        let faults = state.faults.draw_read(Action::Read, &input.key);
        if faults.missing {
            return Err(s3_error!(NoSuchKey));
        }
        if let Some(target) = &faults.redirect_to {
            return Err(redirect(target));
        }
        unless_changed(&object.etag, &input.if_match, &input.if_none_match)?;
        let (range, content_range) = match input.range {
            None => (0..object.bytes, None),
            Some(range) => {
                let range = range.check(object.bytes)?;
                let shown = format!("bytes {}-{}/{}", range.start, range.end - 1, object.bytes);
                (range, Some(shown))
            }
        };
        file.seek(io::SeekFrom::Start(range.start)).await.map_err(ObjectError::from)?;
        let length = range.end - range.start;
        Ok(S3Response::new(GetObjectOutput {
            body: Some(body(self.state.clone(), input.bucket.clone(), file, length, faults)),
            accept_ranges: Some("bytes".into()),
            content_length: Some(i64::try_from(length).map_err(S3Error::internal_error)?),
            content_range,
            e_tag: Some(ETag::Strong(object.etag)),
            last_modified: self.modified(&input.bucket, object.modified)?,
            ..GetObjectOutput::default()
        }))
    }

    async fn head_object(&self, request: S3Request<HeadObjectInput>) -> Answer<HeadObjectOutput> {
        let input = request.input;
        let (object, _) = self.state.objects.read(&input.bucket, &input.key).await?;
        unless_changed(&object.etag, &input.if_match, &input.if_none_match)?;
        Ok(S3Response::new(HeadObjectOutput {
            accept_ranges: Some("bytes".into()),
            content_length: Some(i64::try_from(object.bytes).map_err(S3Error::internal_error)?),
            e_tag: Some(ETag::Strong(object.etag)),
            last_modified: self.modified(&input.bucket, object.modified)?,
            ..HeadObjectOutput::default()
        }))
    }

    async fn delete_object(&self, request: S3Request<DeleteObjectInput>) -> Answer<DeleteObjectOutput> {
        self.state.objects.delete(&request.input.bucket, &request.input.key)?;
        self.answer(&request.input.bucket, Action::Delete, &request.input.key)?;
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn delete_objects(&self, request: S3Request<DeleteObjectsInput>) -> Answer<DeleteObjectsOutput> {
        let DeleteObjectsInput { bucket, delete, .. } = request.input;
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for ObjectIdentifier { key, .. } in delete.objects {
            match self.state.objects.delete(&bucket, &key) {
                Ok(()) => deleted.push(DeletedObject { key: Some(key), ..DeletedObject::default() }),
                Err(error) => errors.push(Error {
                    key: Some(key),
                    code: Some("InternalError".into()),
                    message: Some(error.to_string()),
                    ..Error::default()
                }),
            }
        }
        let deleted = (!delete.quiet.unwrap_or(false)).then_some(deleted);
        Ok(S3Response::new(DeleteObjectsOutput {
            deleted,
            errors: Some(errors),
            ..DeleteObjectsOutput::default()
        }))
    }

    async fn list_objects_v2(&self, request: S3Request<ListObjectsV2Input>) -> Answer<ListObjectsV2Output> {
        let input = request.input;
        let prefix = input.prefix.clone().unwrap_or_default();
        let delimiter = input.delimiter.clone().filter(|delimiter| !delimiter.is_empty());
        let max = usize::try_from(input.max_keys.unwrap_or(1000)).unwrap_or(0).min(1000);
        let mut after = match &input.continuation_token {
            // A token is the last name or group of names on the previous page.
            Some(token) => hex::decode(token)
                .ok()
                .and_then(|name| String::from_utf8(name).ok())
                .ok_or_else(|| s3_error!(InvalidArgument, "invalid continuation token"))?,
            None => input.start_after.clone().unwrap_or_default(),
        };

        let (mut contents, mut groups) = (Vec::new(), Vec::new());
        let mut more = false;
        for (name, object) in self.state.objects.list(&input.bucket, &prefix)? {
            if name <= after {
                continue;
            }
            if contents.len() + groups.len() == max {
                more = max > 0;
                break;
            }
            let rest = &name[prefix.len()..];
            let end = delimiter.as_ref().and_then(|delimiter| Some(rest.find(delimiter)? + delimiter.len()));
            if let Some(end) = end {
                let group = &name[..prefix.len() + end];
                // Continue with the first name after this group.
                after = format!("{group}{}", char::MAX);
                groups.push(CommonPrefix { prefix: Some(group.to_owned()) });
                continue;
            }
            after = name.clone();
            contents.push(Object {
                key: Some(name),
                size: Some(i64::try_from(object.bytes).map_err(S3Error::internal_error)?),
                e_tag: Some(ETag::Strong(object.etag)),
                last_modified: self.modified(&input.bucket, object.modified)?,
                ..Object::default()
            });
        }
        let count = i32::try_from(contents.len() + groups.len()).map_err(S3Error::internal_error)?;
        Ok(S3Response::new(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: input.prefix,
            delimiter: input.delimiter,
            start_after: input.start_after,
            continuation_token: input.continuation_token,
            key_count: Some(count),
            max_keys: Some(i32::try_from(max).map_err(S3Error::internal_error)?),
            is_truncated: Some(more),
            next_continuation_token: more.then(|| hex::encode(&after)),
            contents: Some(contents),
            common_prefixes: Some(groups),
            ..ListObjectsV2Output::default()
        }))
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> Answer<CreateMultipartUploadOutput> {
        let CreateMultipartUploadInput { bucket, key, .. } = request.input;
        let number = self.upload_number.fetch_add(1, Ordering::Relaxed);
        let id = format!("upload-{number}");
        let (mut uploads, used) = (self.uploads(), Instant::now());
        expire(&mut uploads, used);
        if uploads.len() >= UPLOADS_MAX {
            return Err(s3_error!(SlowDown, "too many uploads in progress"));
        }
        let upload = Upload { bucket: bucket.clone(), key: key.clone(), parts: BTreeMap::new(), used };
        uploads.insert(id.clone(), upload);
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(bucket),
            key: Some(key),
            upload_id: Some(id),
            ..CreateMultipartUploadOutput::default()
        }))
    }

    async fn upload_part(&self, request: S3Request<UploadPartInput>) -> Answer<UploadPartOutput> {
        let input = request.input;
        if !(1..=PARTS_MAX).contains(&input.part_number) {
            return Err(s3_error!(InvalidArgument, "parts are numbered from 1 to 10000"));
        }
        let (id, bucket, key) = (&input.upload_id, &input.bucket, &input.key);
        self.upload(id, bucket, key, |_| ())?;
        let part = self.receive(bucket, key, input.body, input.content_length, &request.headers).await?;
        let e_tag = Some(ETag::Strong(part.digest.clone()));
        // The upload may have been aborted during the transfer.
        self.upload(id, bucket, key, |upload| upload.parts.insert(input.part_number, Arc::new(part)))?;
        Ok(with_checksums(UploadPartOutput { e_tag, ..UploadPartOutput::default() }, &request.headers))
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> Answer<CompleteMultipartUploadOutput> {
        let input = request.input;
        unconditional(&input.if_match, &input.if_none_match)?;
        let wanted = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        let parts = self
            .upload(&input.upload_id, &input.bucket, &input.key, |upload| chosen(&upload.parts, &wanted))??;
        if self.bucket(&input.bucket)?.faults.is_full(&input.key) {
            return Err(ObjectError::Full.into());
        }
        let (state, uploads) = (self.state.clone(), self.uploads.clone());
        let (bucket, key, id) = (input.bucket, input.key, input.upload_id);
        let mut completed: BoxFuture<'static, S3Result<CompleteMultipartUploadOutput>> =
            Box::pin(async move {
                let mut whole = state.objects.begin()?;
                for part in &parts {
                    whole.append(part).await?;
                }
                let whole = whole.finish().await?;
                let etag = state.objects.place(&bucket, &key, whole)?.etag;
                // Removed only now: a client that lost the answer may complete again while the parts exist.
                uploads.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
                answer(&state, &bucket, Action::Write, &key)?;
                Ok(CompleteMultipartUploadOutput {
                    bucket: Some(bucket),
                    key: Some(key),
                    e_tag: Some(ETag::Strong(etag)),
                    ..CompleteMultipartUploadOutput::default()
                })
            });
        // As in S3, the answer to a long completion begins early, padded with blanks until the result is known.
        Ok(S3Response::new(match tokio::time::timeout(SILENCE_MAX, &mut completed).await {
            Ok(completed) => completed?,
            Err(_) => CompleteMultipartUploadOutput { future: Some(completed), ..Default::default() },
        }))
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> Answer<AbortMultipartUploadOutput> {
        let input = request.input;
        self.upload(&input.upload_id, &input.bucket, &input.key, |_| ())?;
        self.uploads().remove(&input.upload_id);
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }
}

/// Drops the uploads of clients that stopped.
fn expire(uploads: &mut BTreeMap<String, Upload>, now: Instant) {
    uploads.retain(|_, upload| now.saturating_duration_since(upload.used) < UPLOAD_KEPT);
}

/// Returns the parts that a client lists, in its order, after a check of their digests.
fn chosen(parts: &BTreeMap<i32, Arc<Received>>, wanted: &[CompletedPart]) -> S3Result<Vec<Arc<Received>>> {
    if wanted.is_empty() {
        return Err(s3_error!(MalformedXML, "an upload has at least one part"));
    }
    let mut chosen: Vec<Arc<Received>> = Vec::with_capacity(wanted.len());
    let mut before = 0;
    for part in wanted {
        let number = part.part_number.unwrap_or(0);
        if number <= before {
            return Err(s3_error!(InvalidPartOrder));
        }
        before = number;
        let found = parts.get(&number).ok_or_else(|| s3_error!(InvalidPart))?;
        if part.e_tag.as_ref().is_some_and(|etag| etag.value() != found.digest) {
            return Err(s3_error!(InvalidPart));
        }
        chosen.push(found.clone());
    }
    let all_but_last = &chosen[..chosen.len() - 1];
    if all_but_last.iter().any(|part| part.bytes < PART_BYTES_MIN) {
        return Err(s3_error!(EntityTooSmall));
    }
    Ok(chosen)
}

/// Headers of the checksums that a client may announce for a body.
const CHECKSUMS: [&str; 5] = [
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-sha1",
    "x-amz-checksum-sha256",
];

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

fn announced(headers: &HeaderMap) -> Checksum {
    let [crc32, crc32c, crc64nvme, sha1, sha256] = CHECKSUMS.map(|name| text(headers, name));
    Checksum {
        checksum_crc32: crc32,
        checksum_crc32c: crc32c,
        checksum_crc64nvme: crc64nvme,
        checksum_sha1: sha1,
        checksum_sha256: sha256,
        checksum_type: None,
    }
}

/// Returns a hasher of the announced checksums.
fn hasher(announced: &Checksum) -> ChecksumHasher {
    use s3s::crypto::{Crc32, Crc32c, Crc64Nvme, Sha1, Sha256};
    ChecksumHasher {
        crc32: announced.checksum_crc32.as_ref().map(|_| Crc32::new()),
        crc32c: announced.checksum_crc32c.as_ref().map(|_| Crc32c::new()),
        crc64nvme: announced.checksum_crc64nvme.as_ref().map(|_| Crc64Nvme::new()),
        sha1: announced.checksum_sha1.as_ref().map(|_| Sha1::new()),
        sha256: announced.checksum_sha256.as_ref().map(|_| Sha256::new()),
    }
}

/// Returns an answer that repeats the request's checksums, against which the body was checked.
fn with_checksums<T>(output: T, request: &HeaderMap) -> S3Response<T> {
    let mut response = S3Response::new(output);
    for name in CHECKSUMS {
        if let Some(sum) = request.get(name) {
            response.headers.insert(name, sum.clone());
        }
    }
    response
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits =
            group.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - group.len()));
        for digit in 0..4 {
            let shown = digit <= group.len();
            text.push(if shown { DIGITS[(bits >> (18 - 6 * digit) & 63) as usize] as char } else { '=' });
        }
    }
    text
}

/// Refuses conditional requests: our clients never write conditionally (PROT-12).
fn unconditional(if_match: &Option<ETagCondition>, if_none_match: &Option<ETagCondition>) -> S3Result<()> {
    match (if_match, if_none_match) {
        (None, None) => Ok(()),
        _ => Err(s3_error!(NotImplemented, "conditional writes are not served")),
    }
}

fn unless_changed(
    etag: &str,
    if_match: &Option<ETagCondition>,
    if_none_match: &Option<ETagCondition>,
) -> S3Result<()> {
    if let Some(ETagCondition::ETag(wanted)) = if_match
        && wanted.value() != etag
    {
        return Err(s3_error!(PreconditionFailed));
    }
    match if_none_match {
        Some(ETagCondition::Any) => Err(s3_error!(NotModified)),
        Some(ETagCondition::ETag(known)) if known.value() == etag => Err(s3_error!(NotModified)),
        _ => Ok(()),
    }
}

fn redirect(target: &str) -> S3Error {
    let mut error = s3_error!(TemporaryRedirect, "injected: redirected");
    error.set_headers(target.try_into().map(|target| (LOCATION, target)).into_iter().collect());
    error
}

impl From<ObjectError> for S3Error {
    fn from(error: ObjectError) -> S3Error {
        match error {
            ObjectError::NotFound => s3_error!(NoSuchKey),
            ObjectError::Full => {
                let code = S3ErrorCode::Custom("InsufficientStorage".into());
                let mut error = S3Error::with_message(code, "there is no room left");
                error.set_status_code(reqwest::StatusCode::INSUFFICIENT_STORAGE);
                error
            }
            ObjectError::TooLarge(_) => s3_error!(EntityTooLarge),
            ObjectError::BadName(why) => S3Error::with_message(S3ErrorCode::InvalidArgument, why),
            ObjectError::Disk(source) => {
                tracing::error!(error = %source, "the disk failed");
                S3Error::internal_error(source)
            }
        }
    }
}

/// Returns the body of an answer: the next `length` bytes of `file`, with the faults of this read.
fn body(state: Arc<State>, bucket: String, file: File, length: u64, faults: ReadFaults) -> StreamingBlob {
    // The announced length is the whole length, so the connection ends early.
    let end = if faults.truncated { length / 2 } else { length };
    // Ten pieces per second.
    let rate = u64::from(faults.drip_bytes_per_second);
    let (piece_bytes, pause) = match (rate / 10).max(1) {
        _ if rate == 0 => (u64::MAX, Duration::ZERO),
        piece => (piece, Duration::from_secs_f64(piece as f64 / rate as f64)),
    };
    StreamingBlob::wrap(stream::try_unfold((state, file, 0u64), move |(state, mut file, at)| {
        let bucket = bucket.clone();
        let wait = if at == 0 { faults.stall } else { pause };
        async move {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            let mut chunk = next_chunk(&mut file, piece_bytes.min(end - at)).await?;
            let next = at + chunk.len() as u64;
            if next == at {
                if faults.truncated {
                    // The end of the connection drops unsent bytes.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                return Ok::<_, io::Error>(None);
            }
            if faults.flipped && (at..next).contains(&(length / 2)) {
                chunk = flip_bit(&chunk, (length / 2 - at) as usize);
            }
            if let Ok(bucket) = state.bucket(&bucket) {
                bucket.traffic.add_down(chunk.len() as u64);
            }
            Ok(Some((chunk, (state, file, next))))
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_whose_client_is_gone_expires() {
        let begun = Instant::now();
        let upload = |used| Upload { bucket: "b".into(), key: "k".into(), parts: BTreeMap::new(), used };
        let mut uploads: BTreeMap<String, Upload> = [("old", begun), ("new", begun + Duration::from_secs(1))]
            .map(|(id, used)| (id.to_owned(), upload(used)))
            .into();
        expire(&mut uploads, begun + UPLOAD_KEPT - Duration::from_millis(1));
        assert_eq!(uploads.len(), 2);
        expire(&mut uploads, begun + UPLOAD_KEPT);
        assert_eq!(uploads.keys().collect::<Vec<_>>(), ["new"]);
    }

    #[test]
    fn base64_is_that_of_rfc_4648() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }
}
