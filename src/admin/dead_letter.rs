//! Documents of the provider that could not be read, for operators to look at and to clear away.

use crate::admin::Admin;
use crate::admin::wire::{
    self, DeadLetterList, DeadLetterShown, DeadLettersCleared, Letters, Refusal, Response,
};
use crate::store::DeadLetter;

/// More than the store ever keeps.
const ALL: usize = usize::MAX;

impl Admin {
    pub(super) fn list_dead_letters(&self) -> Result<Response, Refusal> {
        let dead_letters = self.store.dead_letters(ALL)?.iter().map(shown).collect();
        Ok(Response::DeadLetters(DeadLetterList { dead_letters }))
    }

    pub(super) fn show_dead_letter(&self, id: &str) -> Result<Response, Refusal> {
        let found = one(&self.store.dead_letters(ALL)?, id)?;
        let (letter, document) = (shown(&found), found.document);
        Ok(Response::DeadLetter(DeadLetterShown { letter, document }))
    }

    pub(super) async fn clear_dead_letters(&self, letters: &Letters) -> Result<Response, Refusal> {
        let kept = self.store.dead_letters(ALL)?;
        let meant = match letters {
            Letters::All => kept,
            Letters::Ids(ids) => {
                ids.iter().map(|id| one(&kept, id)).collect::<Result<Vec<_>, _>>()?
            }
        };
        let cleared = self.store.remove_dead_letters(&meant).await?;
        Ok(Response::DeadLettersCleared(DeadLettersCleared { cleared }))
    }
}

/// The one letter whose id begins so.
fn one(kept: &[DeadLetter], id: &str) -> Result<DeadLetter, Refusal> {
    let mut found = kept.iter().filter(|letter| !id.is_empty() && letter.id().starts_with(id));
    match (found.next(), found.next()) {
        (Some(letter), None) => Ok(letter.clone()),
        (Some(_), Some(_)) => Err(Refusal::new(format!(
            "several dead letters have ids that begin with {id:?}; give more of it"
        ))),
        (None, _) => Err(Refusal::new(format!(
            "there is no dead letter {id:?}; `pillarbox dead-letter list` shows those there are"
        ))),
    }
}

fn shown(letter: &DeadLetter) -> wire::DeadLetter {
    wire::DeadLetter {
        id: letter.id(),
        received_at: letter.received_at.to_string(),
        reason: letter.reason.clone(),
        length: letter.length,
    }
}
