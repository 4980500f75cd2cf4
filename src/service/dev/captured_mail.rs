//! What the simulator caught, for the operators' page.

use crate::operator::captured_mail::{Catcher, Caught, Summary};
use crate::simulator::{CapturedMail, CapturedMessage};

/// The simulator's memory, as the page asks for it.
#[derive(Debug)]
pub(super) struct Memory(pub(super) CapturedMail);

impl Catcher for Memory {
    fn total(&self) -> u64 {
        self.0.accepted_total()
    }

    fn newest(&self, limit: usize) -> Vec<Summary> {
        self.0.newest(limit).iter().map(|message| summary(message)).collect()
    }

    fn message(&self, id: &str) -> Option<Caught> {
        self.0.message(id).map(|message| caught(&message))
    }
}

fn summary(message: &CapturedMessage) -> Summary {
    Summary {
        id: message.id.clone(),
        caught_at: message.received_at,
        from: message.from.clone(),
        to: message.to.clone(),
        subject: message.subject.clone(),
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
    }
}
