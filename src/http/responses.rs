//! Responses that clients have not read yet: their bytes come out of one budget, with a share for
//! each organisation.
//!
//! A body's bytes are given back once the last of them is written to the socket, or the
//! connection is gone. Knows nothing of what a response says.

use bytes::Bytes;

use crate::domain::id::OrganisationId;
use crate::http::error::ApiError;
use crate::http::overload::{Overload, SharedLimit};
use crate::share::{Budget, Exhausted, Reservation};

/// The budget of responses. Clones share it.
#[derive(Debug, Clone)]
pub struct Responses(Budget<OrganisationId>);

/// A body that is counted for as long as any part of it is held.
struct Unread {
    body: Bytes,
    _reserved: Reservation<OrganisationId>,
}

impl AsRef<[u8]> for Unread {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Responses {
    /// A budget of `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        Self(Budget::new(max_bytes))
    }

    /// Changes how many bytes may be unread in all.
    pub fn set_max(&self, max_bytes: usize) {
        self.0.set_max(max_bytes);
    }

    /// Refuses if an organisation has left too much unread: before anything is done for it.
    pub fn require_room(&self, organisation: OrganisationId) -> Result<(), ApiError> {
        self.0.reserve(organisation, 1).map(drop).map_err(full)
    }

    /// Counts a body until it is read. Whoever holds the last part of it, be it a connection's
    /// write buffer, holds what was reserved.
    pub fn count(&self, organisation: OrganisationId, body: Bytes) -> Result<Bytes, ApiError> {
        let reserved = self.0.reserve(organisation, body.len()).map_err(full)?;
        Ok(Bytes::from_owner(Unread { body, _reserved: reserved }))
    }
}

fn full(exhausted: Exhausted) -> ApiError {
    ApiError::QueueFull(Overload::short(SharedLimit::Writing, exhausted))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACME: OrganisationId = OrganisationId(1);
    const BETA: OrganisationId = OrganisationId(2);

    #[test]
    fn a_body_counts_until_its_last_part_is_gone() {
        let responses = Responses::new(1_000);
        let mut body = responses.count(ACME, Bytes::from(vec![b'x'; 600])).unwrap();
        assert_eq!(responses.0.in_use(), 600);
        let piece = body.split_to(10);
        drop(body);
        assert_eq!((piece.len(), responses.0.in_use()), (10, 600));
        assert_eq!(responses.require_room(ACME), Err(full(Exhausted::Share)));
        assert_eq!(responses.require_room(BETA), Ok(()));
        let too_much = responses.count(BETA, Bytes::from(vec![b'x'; 401]));
        assert_eq!(too_much, Err(full(Exhausted::Whole)));
        drop(piece);
        assert_eq!(responses.0.in_use(), 0);
        assert_eq!(responses.require_room(ACME), Ok(()));
    }
}
