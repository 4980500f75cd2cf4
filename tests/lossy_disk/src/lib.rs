//! A file system in memory that loses what was not synced when its power is cut.
//!
//! [`Disk`] is the model: files as sectors, directories as entries, each with what is durable and
//! what is pending. [`Mount`] serves it over FUSE without the kernel's page cache, and
//! [`Power`] stops it at a cut. It shares no code with pillarbox.

mod content;
mod disk;
mod fault;
mod mount;
mod power;

pub use content::SECTOR_BYTES;
pub use disk::{Attributes, Disk, DiskError, Entry, Inode, Kind, Loss, ROOT};
pub use fault::{Fault, IgnoredSyncs, UnknownWord};
pub use mount::Mount;
pub use power::Power;
