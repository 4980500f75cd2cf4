//! Documents of the provider that could not be read, for operators to inspect and to delete.

use serde::{Deserialize, Serialize};

use crate::{Admin, DeadLetterClear, DeadLetterList, DeadLetterShow, Refusal, Result};

/// More than the store ever keeps.
const ALL: usize = usize::MAX;

/// Selection of dead letters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Letters {
    All,
    Ids(Vec<String>),
}

/// A document of the provider that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetter {
    pub id: String,
    pub received_at: String,
    pub reason: String,
    /// Length of the whole document, in bytes.
    pub length: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetters {
    pub dead_letters: Vec<DeadLetter>,
}

/// A dead letter with its document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetterShown {
    #[serde(flatten)]
    pub letter: DeadLetter,
    /// The beginning of the document, as far as it is kept.
    pub document: String,
}

/// Dead letters were deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLettersCleared {
    pub cleared: usize,
}

pub(super) async fn list(admin: &Admin, _: DeadLetterList) -> Result<DeadLetters> {
    let dead_letters = admin.store.dead_letters(ALL).await?.iter().map(shown).collect();
    Ok(DeadLetters { dead_letters })
}

pub(super) async fn show(admin: &Admin, call: DeadLetterShow) -> Result<DeadLetterShown> {
    let found = one(&admin.store.dead_letters(ALL).await?, &call.id)?;
    Ok(DeadLetterShown { letter: shown(&found), document: found.document })
}

pub(super) async fn clear(admin: &Admin, call: DeadLetterClear) -> Result<DeadLettersCleared> {
    let kept = admin.store.dead_letters(ALL).await?;
    let meant = match &call.letters {
        Letters::All => kept,
        Letters::Ids(ids) => ids.iter().map(|id| one(&kept, id)).collect::<Result<Vec<_>, _>>()?,
    };
    let cleared = admin.store.remove_dead_letters(&meant).await?;
    Ok(DeadLettersCleared { cleared })
}

/// The one letter whose id begins so.
fn one(kept: &[pillarbox_store::DeadLetter], id: &str) -> Result<pillarbox_store::DeadLetter> {
    let mut found = kept.iter().filter(|letter| !id.is_empty() && letter.id().starts_with(id));
    match (found.next(), found.next()) {
        (Some(letter), None) => Ok(letter.clone()),
        (Some(_), Some(_)) => Err(Refusal::new(format!(
            "several dead letters have ids that begin with {id:?}; give more of the id"
        ))),
        (None, _) => Err(Refusal::new(format!(
            "there is no dead letter {id:?}; to list them: pillarbox dead-letter list"
        ))),
    }
}

fn shown(letter: &pillarbox_store::DeadLetter) -> DeadLetter {
    DeadLetter {
        id: letter.id(),
        received_at: letter.received_at.to_string(),
        reason: letter.reason.clone(),
        length: letter.length,
    }
}
