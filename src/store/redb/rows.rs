//! Rows of the shared transaction, as the rules of transitions read and change them.

use redb::ReadableTable;

use crate::domain::id::{MessageId, OrganisationId};
use crate::domain::message::{Failure, Message};
use crate::domain::suppression::{SuppressedAddress, Suppression};
use crate::domain::time::Timestamp;
use crate::organisation_counts::Increment;
use crate::store::Change;
use crate::store::error::DamagedRow;
use crate::store::record::{
    EventKey, ReportedChange, UnmatchedEvent, decode_suppression, encode_suppression,
};
use crate::store::redb::batch::Batch;
use crate::store::redb::error::ReadError;
use crate::store::redb::{dead_letters, feed, lost_messages, outcomes, suppressions};
use crate::store::transitions::{Rows, RowsError, StoredSuppression};

impl RowsError for ReadError {
    fn into_damage(self) -> Result<DamagedRow, Self> {
        match self {
            Self::Row(row) => Ok(row),
            Self::File(error) => Err(Self::File(error)),
        }
    }
}

impl Rows for Batch<'_> {
    type Error = ReadError;

    fn message(&mut self, id: MessageId) -> Result<Option<Message>, ReadError> {
        outcomes::read(&mut self.tables, id)
    }

    fn put_message(&mut self, message: &Message) -> Result<(), ReadError> {
        outcomes::write(&mut self.tables, message)
    }

    fn keep_overturned(&mut self, id: MessageId, failure: &Failure) -> Result<(), ReadError> {
        feed::keep_overturned(self, id, failure)
    }

    fn find_sent(
        &mut self,
        ses_message_id: &str,
        accepted_at: Timestamp,
    ) -> Result<Option<MessageId>, ReadError> {
        Ok(outcomes::find_sent(&mut self.tables, ses_message_id, accepted_at)?)
    }

    fn add_sent(
        &mut self,
        id: MessageId,
        ses_message_id: &str,
        sent_at: Timestamp,
    ) -> Result<(), ReadError> {
        let key = (sent_at.unix_millis(), *id.as_bytes());
        Ok(self.tables.sent.insert_later(key, ses_message_id.as_bytes())?)
    }

    fn event(&mut self, id: MessageId, key: &EventKey) -> Result<Option<Vec<u8>>, ReadError> {
        let row = self.tables.events.open()?.get(key.of_message(id).as_slice())?;
        Ok(row.map(|row| row.value().to_vec()))
    }

    fn put_event(&mut self, id: MessageId, key: &EventKey, row: &[u8]) -> Result<(), ReadError> {
        Ok(self.tables.events.open()?.insert(key.of_message(id).as_slice(), row)?)
    }

    fn keep_unmatched(
        &mut self,
        ses_message_id: &str,
        digest: &[u8],
        row: &[u8],
        now: Timestamp,
    ) -> Result<Change, ReadError> {
        dead_letters::keep_unmatched(self, ses_message_id, digest, row, now)
    }

    fn take_unmatched(&mut self, ses_message_id: &str) -> Result<Vec<UnmatchedEvent>, ReadError> {
        dead_letters::take_unmatched(self, ses_message_id)
    }

    fn suppression(
        &mut self,
        organisation: OrganisationId,
        address: &SuppressedAddress,
    ) -> Result<StoredSuppression, ReadError> {
        let key = (organisation.0, address.as_str());
        let row = self.tables.suppressions.open()?.get(key)?;
        Ok(row.map_or(StoredSuppression::Missing, |row| {
            decode_suppression(key.1, row.value())
                .map_or(StoredSuppression::Damaged, StoredSuppression::Readable)
        }))
    }

    fn put_suppression(
        &mut self,
        organisation: OrganisationId,
        suppression: &Suppression,
    ) -> Result<(), ReadError> {
        if suppressions::insert(self, Some(organisation), suppression)? == Change::None {
            let key = (organisation.0, suppression.address.as_str());
            let row = encode_suppression(suppression);
            self.tables.suppressions.open()?.insert(key, row.as_slice())?;
        }
        Ok(())
    }

    fn report(
        &mut self,
        message: &Message,
        change: ReportedChange,
        now: Timestamp,
    ) -> Result<(), ReadError> {
        feed::report(self, message, change, now)
    }

    fn add_lost_message(&mut self, found_at: Timestamp) -> Result<(), ReadError> {
        lost_messages::add(&mut self.tables, 1, found_at)
    }

    fn count(&mut self, organisation: OrganisationId, increment: Increment) {
        self.increments.push((organisation, increment));
    }

    fn may_be_named(&self, organisation: OrganisationId, name: &str) -> bool {
        self.shared.organisations().may_be_named(organisation, name)
    }

    fn organisation_named(&self, name: &str) -> Option<OrganisationId> {
        self.shared.organisations().named(name).map(|organisation| organisation.id)
    }

    fn note_damage(&self, row: DamagedRow) {
        self.shared.damage.note(row);
    }
}
