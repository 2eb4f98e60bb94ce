//! Messages and objects on a stream, each with its limits.

use std::io;
use std::time::Duration;

use futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use protocol::ensure;
use protocol::peer::{MESSAGE_BYTES_MAX, Message, MessageError};
use store::fetch::RateWindow;
use store::{FetchError, Limits};
use tokio::time::{Instant, timeout, timeout_at};

/// Size of one read or write of an object's bytes.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;

/// Error of a message that did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error("the stream broke: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Message(#[from] MessageError),
    #[error("nothing came within {0:?}")]
    Stalled(Duration),
}

/// Reads one message after its length. A length above the limit is refused before anything else is read.
pub(crate) async fn receive<M: Message>(
    stream: &mut (impl AsyncRead + Unpin),
    within: Duration,
) -> Result<M, WireError> {
    let read = async {
        let mut length = [0; 2];
        stream.read_exact(&mut length).await?;
        let bytes = usize::from(u16::from_le_bytes(length));
        ensure!(bytes <= MESSAGE_BYTES_MAX, MessageError::TooLong { bytes });
        let mut message = vec![0; bytes];
        stream.read_exact(&mut message).await?;
        Ok::<M, WireError>(M::from_bytes(&message)?)
    };
    timeout(within, read).await.unwrap_or(Err(WireError::Stalled(within)))
}

/// Writes one message after its length.
pub(crate) async fn send(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &impl Message,
    within: Duration,
) -> Result<(), WireError> {
    let bytes = message.to_bytes();
    let length = u16::try_from(bytes.len()).expect("a message is short");
    let framed = [&length.to_le_bytes()[..], &bytes].concat();
    let write = async {
        stream.write_all(&framed).await?;
        stream.flush().await
    };
    Ok(timeout(within, write).await.map_err(|_| WireError::Stalled(within))??)
}

/// Reads the bytes of an object as they arrive, at the minimum rate. The caller enforces the total deadline.
pub(crate) struct Body<'a, S> {
    stream: &'a mut S,
    limits: &'a Limits,
    window: Option<RateWindow>,
    expected: u64,
    got: u64,
    chunk: Vec<u8>,
}

impl<'a, S: AsyncRead + Unpin> Body<'a, S> {
    pub fn new(stream: &'a mut S, expected: u64, limits: &'a Limits) -> Body<'a, S> {
        let capacity = usize::try_from(expected).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        Body {
            stream,
            limits,
            window: Some(RateWindow::open(limits)),
            expected,
            got: 0,
            chunk: vec![0; capacity],
        }
    }

    /// Returns the next bytes; `None` after the last ones. Time between calls does not count against the sender.
    ///
    /// # Errors
    /// If the stream ends or breaks early, or the sender is too slow.
    pub async fn next(&mut self) -> Result<Option<&[u8]>, FetchError> {
        let left = self.expected - self.got;
        if left == 0 {
            return Ok(None);
        }
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(self.chunk.len());
        loop {
            let window = self.window.as_ref().expect("a window is open between two calls");
            match timeout_at(window.end(), self.stream.read(&mut self.chunk[..most])).await {
                Ok(Ok(0)) => return Err(FetchError::CutShort { got: self.got, expected: self.expected }),
                Ok(Ok(bytes)) => {
                    self.got += bytes as u64;
                    let window = self.window.as_mut().expect("it was there");
                    window.add(bytes as u64);
                    if window.end() <= Instant::now() {
                        self.turn()?;
                    }
                    return Ok(Some(&self.chunk[..bytes]));
                }
                Ok(Err(error)) => {
                    let (got, expected) = (self.got, self.expected);
                    return Err(FetchError::Broken { got, expected, what: error.to_string() });
                }
                Err(_) => self.turn()?,
            }
        }
    }

    /// Excludes time in which the bytes were stored.
    pub fn pause(&mut self, ours: Duration) {
        if let Some(window) = &mut self.window {
            window.pause(ours);
        }
    }

    fn turn(&mut self) -> Result<(), FetchError> {
        let ended = self.window.take().expect("a window is open between two calls");
        self.window = Some(ended.next(self.limits)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::io::Cursor;
    use protocol::peer::PutAnswer;

    const SOON: Duration = Duration::from_millis(50);

    async fn read(bytes: &[u8]) -> Result<PutAnswer, WireError> {
        receive(&mut Cursor::new(bytes), SOON).await
    }

    #[tokio::test]
    async fn a_message_is_whole_and_short_or_no_message() {
        let mut written = Cursor::new(Vec::new());
        send(&mut written, &PutAnswer::Have, SOON).await.unwrap();
        let bytes = written.into_inner();
        assert_eq!(read(&bytes).await.unwrap(), PutAnswer::Have);
        for cut in 0..bytes.len() {
            assert!(matches!(read(&bytes[..cut]).await, Err(WireError::Io(_))), "{cut}");
        }
        let long = read(&[0xff, 0xff, 1]).await.unwrap_err();
        assert!(matches!(long, WireError::Message(MessageError::TooLong { bytes: 65535 })), "{long}");
        let later = read(&[2, 0, 9, 1]).await.unwrap_err();
        assert!(
            later.to_string().contains("version 9") && later.to_string().contains("version 1"),
            "{later}"
        );
    }

    #[tokio::test]
    async fn a_body_ends_where_it_was_announced_to() {
        let limits = Limits::for_bytes(5);
        let mut stream = Cursor::new(b"objects");
        let mut body = Body::new(&mut stream, 6, &limits);
        assert_eq!(body.next().await, Ok(Some(&b"object"[..])));
        assert_eq!(body.next().await, Ok(None));
        let mut body = Body::new(&mut stream, 3, &limits);
        assert_eq!(body.next().await, Ok(Some(&b"s"[..])));
        assert_eq!(body.next().await, Err(FetchError::CutShort { got: 1, expected: 3 }));
    }

    /// A reader that never delivers anything.
    struct Silent;

    impl AsyncRead for Silent {
        fn poll_read(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            _: &mut [u8],
        ) -> std::task::Poll<io::Result<usize>> {
            std::task::Poll::Pending
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_says_nothing_or_sends_slowly_is_left() {
        assert!(matches!(receive::<PutAnswer>(&mut Silent, SOON).await, Err(WireError::Stalled(_))));
        let limits = Limits::for_bytes(10);
        let (mut stream, crawled) = (Silent, FetchError::Crawled { bytes: 0, window: limits.rate_window });
        assert_eq!(Body::new(&mut stream, 10, &limits).next().await, Err(crawled));
    }
}
