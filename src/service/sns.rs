//! The listener that SNS posts to, where the configuration has one.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tracing::{error, info};

use crate::clock::Clock;
use crate::config;
use crate::feedback::Feedback;
use crate::feedback::sns::Posts;
use crate::http;
use crate::http::drain::DrainSignal;
use crate::http::provider::{self, ProviderApi};
use crate::service::ServiceError;
use crate::ses::SesClient;
use crate::ses::sns::{TopicArn, Trust, Verifier};

/// The listener, bound, and what verifies the posts that will come.
#[derive(Debug)]
pub(super) struct Bound {
    listener: TcpListener,
    address: SocketAddr,
    verifier: Verifier,
}

/// The listener, being served.
#[derive(Debug)]
pub(super) struct Serving {
    pub(super) address: SocketAddr,
    answering: JoinHandle<()>,
}

impl Bound {
    /// Binds the listener.
    pub(super) async fn new(config: &config::Sns, clock: Clock) -> Result<Self, ServiceError> {
        let topics: Result<Vec<_>, _> =
            config.topics.iter().map(|topic| TopicArn::parse(topic)).collect();
        let verifier = Verifier::new(topics?, &Trust::System, clock)?;
        let failed = |source| ServiceError::ListenForSns { address: config.listen, source };
        let listener = TcpListener::bind(config.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, verifier })
    }

    /// Starts to take posts, until the drain stops it.
    pub(super) fn serve(
        self,
        feedback: Arc<Feedback>,
        ses: SesClient,
        drain: DrainSignal,
    ) -> Serving {
        let Self { listener, address, verifier } = self;
        for topic in verifier.topics() {
            info!(%topic, "SNS's posts are taken at http://{address}{}", provider::PATH);
        }
        let limits = provider::limits();
        let api = ProviderApi::new(Arc::new(Posts::new(feedback, verifier, ses)), &limits);
        let answering = tokio::spawn(async move {
            if let Err(error) = http::serve(listener, api, limits, drain).await {
                error!(%error, "the listener for SNS ended");
            }
        });
        Serving { address, answering }
    }
}

impl Serving {
    /// Waits for the end of the last post, once the drain has stopped the listener.
    pub(super) async fn ended(self) {
        if let Err(error) = self.answering.await {
            error!(%error, "the task of the listener for SNS failed");
        }
    }
}
