//! Node drain: what a node does while an operator drains it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{info, warn};

use pillarbox_intake::Intake;
use pillarbox_store::DrainOrder;

/// Time from a node's not being ready, because an operator drains it, to its first refusal. A load
/// balancer that checks every second or two sends nothing any more by then.
const NOTICE_DRAIN: Duration = Duration::from_secs(5);

/// Refuses new messages while an operator drains this node. It is not ready at once, and refuses only
/// once load balancers have noticed.
pub(super) async fn follow(mut drains: watch::Receiver<DrainOrder>, intake: Arc<Intake>) {
    loop {
        let drain = *drains.borrow_and_update();
        match (intake.is_drained(), drain) {
            (false, DrainOrder::Begin) => {
                warn!(
                    "an operator is draining this node: it is not ready, and will refuse messages \
                     in 5 seconds"
                );
                match timeout(NOTICE_DRAIN, drains.changed()).await {
                    Ok(Ok(())) => continue,
                    Ok(Err(_)) => return,
                    Err(_) => {}
                }
            }
            (true, DrainOrder::End) => {
                info!("an operator ended the drain of this node: it accepts messages again");
            }
            (false, DrainOrder::End) | (true, DrainOrder::Begin) => {}
        }
        intake.drain(drain);
        if drains.changed().await.is_err() {
            return;
        }
    }
}
