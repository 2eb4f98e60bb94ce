//! A connection that closes if its peer reads nothing for too long. Otherwise readers that request an object and do
//! not read it would occupy all places of the server for ever.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Maximum time of a write until some of its bytes are accepted. A node abandons a store that is slower than this.
pub const STALL_MAX: Duration = Duration::from_secs(30);

/// A stream whose writes fail after no byte was accepted for [`STALL_MAX`].
pub(crate) struct Unstalled<S> {
    stream: S,
    /// Timer that runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncWrite + Unpin> Unstalled<S> {
    pub fn new(stream: S) -> Unstalled<S> {
        Unstalled { stream, stalled: None }
    }

    fn write(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = write(Pin::new(&mut self.stream), context) {
            self.stalled = None;
            return Poll::Ready(written);
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(STALL_MAX)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the reader takes nothing")))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Unstalled<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(context, |stream, context| stream.poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Unstalled<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn a_write_ends_when_nothing_is_taken_and_goes_on_while_anything_is() {
        let (ours, mut theirs) = duplex(16);
        let began = Instant::now();
        let taking = tokio::spawn(async move {
            let mut byte = [0];
            for _ in 0..3 {
                sleep(STALL_MAX - Duration::from_secs(1)).await;
                theirs.read_exact(&mut byte).await.expect("bytes are there");
            }
            theirs
        });
        let failed = Unstalled::new(ours).write_all(&[7; 64]).await.expect_err("it is not taken whole");
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
        let last_taken = 3 * (STALL_MAX - Duration::from_secs(1));
        assert_eq!(began.elapsed(), last_taken + STALL_MAX);
        drop(taking.await.expect("it ends"));
    }
}
