//! Captured mail as the operators' page asks for it: what the simulator of `dev` was given, and what
//! test organisations sent.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::listeners::Operators;
use pillarbox_operator::captured_mail::{Catcher, Caught, CaughtFile, Summary};
use pillarbox_providers::{CapturedByOrganisation, SimulatedProvider};
use pillarbox_ses::send::{MESSAGE_ID_TAG, ORGANISATION_TAG};
use pillarbox_simulator::{CapturedAttachment, CapturedMail, CapturedMessage};
use pillarbox_store::StoreOwner;

/// Has the page show mail of test organisations, if it is kept. `dev` shows its own beside it.
pub(super) fn show(owner: StoreOwner, operators: &Operators, simulated: &SimulatedProvider) {
    if let (StoreOwner::Service, Some(tests)) = (owner, simulated.captured()) {
        let tests = Some(Arc::clone(tests));
        operators.show_caught(Arc::new(Captured { dev: None, tests }));
    }
}

/// Captured mail of this process.
#[derive(Debug)]
pub(super) struct Captured {
    /// Mail that the simulator of `dev` was given in place of SES.
    dev: Option<CapturedMail>,
    /// Mail of test organisations, if it is kept.
    tests: Option<Arc<CapturedByOrganisation>>,
}

impl Captured {
    /// Mail that the simulator of `dev` is given, beside that of test organisations.
    pub(super) fn of_dev(dev: CapturedMail, tests: Option<&Arc<CapturedByOrganisation>>) -> Self {
        Self { dev: Some(dev), tests: tests.cloned() }
    }
}

impl Catcher for Captured {
    fn total(&self) -> u64 {
        let dev = self.dev.as_ref().map_or(0, CapturedMail::accepted_total);
        dev + self.tests.as_ref().map_or(0, |tests| tests.total())
    }

    fn organisations(&self) -> Vec<String> {
        self.tests.as_ref().map_or_else(Vec::new, |tests| tests.organisations())
    }

    fn newest(&self, organisation: Option<&str>, limit: usize) -> Vec<Summary> {
        let mut newest = match (&self.dev, organisation) {
            (Some(dev), None) => dev.newest(limit),
            (Some(_), Some(_)) | (None, _) => Vec::new(),
        };
        if let Some(tests) = &self.tests {
            newest.extend(tests.newest(organisation, limit));
            newest.sort_by_key(|message| Reverse(message.received_at));
            newest.truncate(limit);
        }
        newest.iter().map(|message| summary(message)).collect()
    }

    fn message(&self, id: &str) -> Option<Caught> {
        let dev = self.dev.as_ref().and_then(|dev| dev.message(id));
        let found = dev.or_else(|| self.tests.as_ref()?.message(id));
        found.map(|message| caught(&message))
    }
}

fn summary(message: &CapturedMessage) -> Summary {
    Summary {
        id: message.id.clone(),
        caught_at: message.received_at.to_string(),
        from: message.from.clone(),
        to: message.to.clone(),
        subject: message.subject.clone(),
        message: message.tag(MESSAGE_ID_TAG).map(ToOwned::to_owned),
        organisation: message.tag(ORGANISATION_TAG).map(ToOwned::to_owned),
    }
}

fn caught(message: &CapturedMessage) -> Caught {
    let headers = message.headers.iter();
    Caught {
        summary: summary(message),
        cc: message.cc.clone(),
        bcc: message.bcc.clone(),
        reply_to: message.reply_to.clone(),
        headers: headers.map(|header| (header.name.clone(), header.value.clone())).collect(),
        text: message.text.clone(),
        html: message.html.clone(),
        files: message.attachments.iter().map(file).collect(),
    }
}

fn file(attachment: &CapturedAttachment) -> CaughtFile {
    CaughtFile {
        name: attachment.filename.clone(),
        media_type: attachment.content_type.clone(),
        content_id: attachment.content_id.clone(),
        content: attachment.content.clone(),
    }
}
