//! Handlers, listeners and streams behind pointers, so that what serves connections, hyper's part
//! with it, is compiled once and not for each of their types. Must not know protocols.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::body::ResponseBody;
use crate::rejection::{Rejection, WrittenAnswer};
use crate::request_id::RequestId;
use crate::{Connection, Handler, Listener};
use pillarbox_runtime::in_flight::InFlightGuard;

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Any [`Handler`].
pub(super) trait AnyHandler: Send + Sync {
    fn handle<'a>(
        &'a self,
        request: Request<Incoming>,
        id: RequestId,
        connection: &'a Connection,
    ) -> BoxFuture<'a, Response<ResponseBody>>;

    fn refused(&self, rejection: &Rejection);

    fn write(&self, rejection: &Rejection) -> WrittenAnswer;

    fn connected(&self) -> Option<InFlightGuard>;
}

impl<H: Handler> AnyHandler for H {
    fn handle<'a>(
        &'a self,
        request: Request<Incoming>,
        id: RequestId,
        connection: &'a Connection,
    ) -> BoxFuture<'a, Response<ResponseBody>> {
        Box::pin(Handler::handle(self, request, id, connection))
    }

    fn refused(&self, rejection: &Rejection) {
        Handler::refused(self, rejection);
    }

    fn write(&self, rejection: &Rejection) -> WrittenAnswer {
        H::write(rejection)
    }

    fn connected(&self) -> Option<InFlightGuard> {
        Handler::connected(self)
    }
}

/// The stream of any connection.
pub(super) type AnyStream = Box<dyn Stream>;

pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Any [`Listener`].
pub(super) trait AnyListener: Send {
    /// Waits for the next connection, and returns it with the address of its other end.
    fn accept(&self) -> BoxFuture<'_, io::Result<(AnyStream, Option<IpAddr>)>>;
}

impl<L: Listener> AnyListener for L {
    fn accept(&self) -> BoxFuture<'_, io::Result<(AnyStream, Option<IpAddr>)>> {
        Box::pin(async {
            let connection = Listener::accept(self).await?;
            let address = L::address(&connection);
            Ok((Box::new(connection) as AnyStream, address))
        })
    }
}
