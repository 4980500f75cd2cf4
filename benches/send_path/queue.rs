//! Queue of a running service: how many messages wait, and how they are cancelled.

use std::path::Path;

use pillarbox_admin::client::Client;
use pillarbox_admin::message::QueuedMessages;
use pillarbox_admin::{Call, MessageCancel, Status};

use crate::process::{organisation_name, socket};

/// Asks a running service how many messages wait to be sent.
pub(crate) fn pending(directory: &Path) -> anyhow::Result<usize> {
    let status = ask(directory, &Status {})?;
    Ok(status.sending.map_or(0, |sending| sending.pending_messages))
}

/// Cancels all that the first organisation has in the queue.
pub(crate) fn cancel_all(directory: &Path) -> anyhow::Result<()> {
    let messages =
        QueuedMessages::OfOrganisation { name: organisation_name(0), key: None, domain: None };
    ask(directory, &MessageCancel { messages })?;
    Ok(())
}

/// Asks a running service over its administration socket.
pub(crate) fn ask<C: Call>(directory: &Path, call: &C) -> anyhow::Result<C::Answer> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { Ok(Client::connect(&socket(directory)).await?.call(call).await?) })
}
