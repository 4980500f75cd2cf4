//! Content of a file: what is durable, what is visible now, and each pending version of a sector.
//!
//! A sector has 512 bytes and is written whole or not at all. Between two syncs a drive may write
//! any version of a sector, or none, in any order. The size is metadata: it changes in order.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

/// Bytes that a drive writes as one.
pub const SECTOR_BYTES: usize = 512;

type Sector = [u8; SECTOR_BYTES];

/// Content of one file.
#[derive(Debug, Default)]
pub(crate) struct Content {
    durable: Vec<u8>,
    now: Vec<u8>,
    /// Versions of a sector since the last sync, the oldest first, each with its number.
    pending: BTreeMap<usize, Vec<(u64, Box<Sector>)>>,
    /// Sizes since the last sync, the oldest first, each with its number.
    sizes: Vec<(u64, usize)>,
    next: u64,
    /// End of the part that has its space on the drive.
    allocated: usize,
}

impl Content {
    pub(crate) fn len(&self) -> usize {
        self.now.len()
    }

    pub(crate) fn read(&self, offset: usize, length: usize) -> &[u8] {
        let end = self.now.len().min(offset.saturating_add(length));
        self.now.get(offset..end).unwrap_or_default()
    }

    /// Writes without a sync.
    pub(crate) fn write(&mut self, offset: usize, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let end = offset + data.len();
        if end > self.now.len() {
            self.resize(end);
        }
        self.allocated = self.allocated.max(end);
        self.now[offset..end].copy_from_slice(data);
        for sector in sectors(offset, data.len()) {
            self.note(sector);
        }
    }

    /// Sets the size without a sync.
    pub(crate) fn set_len(&mut self, length: usize) {
        if length != self.now.len() {
            self.resize(length);
        }
    }

    fn resize(&mut self, length: usize) {
        let is_shorter = length < self.now.len();
        self.now.resize(length, 0);
        self.allocated = self.allocated.min(length);
        self.next += 1;
        self.sizes.push((self.next, length));
        if is_shorter && !length.is_multiple_of(SECTOR_BYTES) {
            // The end of the last sector is zero from now on.
            self.note(length / SECTOR_BYTES);
        }
    }

    fn note(&mut self, sector: usize) {
        self.next += 1;
        let version = Box::new(sector_of(&self.now, sector));
        self.pending.entry(sector).or_default().push((self.next, version));
    }

    /// Makes all of it durable (`fsync(2)`).
    pub(crate) fn sync(&mut self) {
        self.sync_size();
        for &sector in self.pending.keys() {
            copy_sector(&self.now, &mut self.durable, sector);
        }
        self.pending.clear();
    }

    /// Makes a part durable, and the size if it has grown to it (a write with `O_DSYNC`).
    pub(crate) fn sync_range(&mut self, offset: usize, length: usize) {
        self.sync_size();
        for sector in sectors(offset, length) {
            copy_sector(&self.now, &mut self.durable, sector);
            self.pending.remove(&sector);
        }
    }

    fn sync_size(&mut self) {
        let shortest = self.sizes.iter().map(|(_, size)| *size).min();
        if let Some(shortest) = shortest {
            let last_cut = self.sizes.iter().rev().find(|(_, size)| *size == shortest);
            let number = last_cut.expect("the shortest is one of them").0;
            // What was cut off comes back as zeros.
            self.durable.truncate(shortest);
            for (sector, versions) in &mut self.pending {
                if sector * SECTOR_BYTES >= shortest {
                    versions.retain(|(version, _)| *version > number);
                }
            }
        }
        self.durable.resize(self.now.len(), 0);
        self.sizes.clear();
    }

    /// A sync that failed: some pages did not reach the drive, and the kernel takes them for clean.
    /// They stay readable until a cut, and no later sync writes them.
    pub(crate) fn lose_pages(&mut self, random: &mut Rng) {
        self.sync_size();
        let lost: BTreeSet<usize> = self.pending.keys().map(|sector| sector / 8).collect();
        let lost: BTreeSet<usize> = lost.into_iter().filter(|_| random.bool()).collect();
        for sector in self.pending.keys() {
            if !lost.contains(&(sector / 8)) {
                copy_sector(&self.now, &mut self.durable, *sector);
            }
        }
        self.pending.clear();
    }

    /// A direct synchronous write that failed: any of its sectors reached the drive.
    pub(crate) fn tear(&mut self, offset: usize, length: usize, random: &mut Rng) {
        self.sync_size();
        for sector in sectors(offset, length) {
            if random.bool() {
                copy_sector(&self.now, &mut self.durable, sector);
            } else {
                copy_sector(&self.durable, &mut self.now, sector);
            }
            self.pending.remove(&sector);
        }
    }

    /// Number of sectors and sizes that are not durable.
    pub(crate) fn pending(&self) -> usize {
        self.pending.len() + self.sizes.len()
    }

    /// Returns true if a write up to this offset needs no more space.
    pub(crate) fn has_room(&self, end: usize) -> bool {
        end <= self.allocated
    }

    /// Loses power: each pending sector keeps one of its versions or none, and the size is one that
    /// it had since the last sync.
    pub(crate) fn cut(&mut self, random: &mut Rng) {
        if self.pending() > 0 {
            // How many in ten sectors survive: all of them as they are now, or any version.
            let kept = [0, 1, 5, 9, 10][random.usize(..5)];
            let all = kept == 10;
            let sizes = self.sizes.len();
            let sizes = if all { sizes } else { random.usize(..=sizes) };
            let applied = &self.sizes[..sizes];
            for (_, size) in applied {
                self.durable.resize(*size, 0);
            }
            for (sector, versions) in &self.pending {
                let start = sector * SECTOR_BYTES;
                let cut_off = applied.iter().rev().find(|(_, size)| *size <= start);
                let floor = cut_off.map_or(0, |(number, _)| *number);
                let candidates: Vec<_> =
                    versions.iter().filter(|(number, _)| *number > floor).collect();
                let version = if all {
                    candidates.last()
                } else if random.u8(0..10) < kept {
                    random.choice(candidates.iter())
                } else {
                    None
                };
                if let Some((_, version)) = version {
                    let end = self.durable.len().min(start + SECTOR_BYTES);
                    if start < end {
                        self.durable[start..end].copy_from_slice(&version[..end - start]);
                    }
                }
            }
        }
        self.now.clone_from(&self.durable);
        self.allocated = self.now.len();
        self.pending.clear();
        self.sizes.clear();
    }
}

fn sectors(offset: usize, length: usize) -> std::ops::Range<usize> {
    offset / SECTOR_BYTES..(offset + length).div_ceil(SECTOR_BYTES)
}

fn sector_of(bytes: &[u8], sector: usize) -> Sector {
    let mut found = [0; SECTOR_BYTES];
    let start = sector * SECTOR_BYTES;
    let end = bytes.len().min(start + SECTOR_BYTES);
    if start < end {
        found[..end - start].copy_from_slice(&bytes[start..end]);
    }
    found
}

fn copy_sector(from: &[u8], to: &mut [u8], sector: usize) {
    let start = sector * SECTOR_BYTES;
    let end = from.len().min(to.len()).min(start + SECTOR_BYTES);
    if start < end {
        to[start..end].copy_from_slice(&from[start..end]);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn of(parts: &[(usize, u8)]) -> Content {
        let mut content = Content::default();
        for (sector, byte) in parts {
            content.write(sector * SECTOR_BYTES, &[*byte; SECTOR_BYTES]);
        }
        content
    }

    /// The first byte of each sector after a cut, for many seeds.
    fn outcomes(make: impl Fn() -> Content) -> BTreeSet<Vec<u8>> {
        let after = |seed| {
            let mut content = make();
            content.cut(&mut Rng::with_seed(seed));
            content.now.iter().step_by(SECTOR_BYTES).copied().collect()
        };
        (0..400).map(after).collect()
    }

    #[test]
    fn synced_content_survives_a_cut() {
        let synced = || {
            let mut content = of(&[(0, 1), (1, 2)]);
            content.sync();
            content
        };
        assert_eq!(outcomes(synced), BTreeSet::from([vec![1, 2]]));
    }

    #[test]
    fn unsynced_sectors_are_dropped_reordered_and_torn() {
        let pending = || {
            let mut content = of(&[(0, 1), (1, 1)]);
            content.sync();
            content.write(0, &[2; 2 * SECTOR_BYTES]);
            content.write(0, &[3; 2 * SECTOR_BYTES]);
            content
        };
        let all: BTreeSet<Vec<u8>> =
            (1..=3).flat_map(|a| (1..=3).map(move |b| vec![a, b])).collect();
        assert_eq!(outcomes(pending), all);
    }

    #[test]
    fn a_synchronous_write_is_durable_alone() {
        let written = || {
            let mut content = of(&[(0, 1), (1, 1), (2, 1)]);
            content.sync();
            content.write(0, &[2; SECTOR_BYTES]);
            content.write(SECTOR_BYTES, &[2; SECTOR_BYTES]);
            content.sync_range(SECTOR_BYTES, SECTOR_BYTES);
            content
        };
        assert_eq!(outcomes(written), BTreeSet::from([vec![1, 2, 1], vec![2, 2, 1]]));
    }

    #[test]
    fn a_synchronous_write_supersedes_what_was_pending() {
        let written = || {
            let mut content = of(&[(0, 1)]);
            content.write(0, &[2; SECTOR_BYTES]);
            content.sync_range(0, SECTOR_BYTES);
            content
        };
        assert_eq!(outcomes(written), BTreeSet::from([vec![2]]));
    }

    #[test]
    fn what_a_shorter_size_cut_off_does_not_come_back_behind_a_longer_one() {
        let resized = || {
            let mut content = of(&[(0, 1), (1, 1)]);
            content.sync();
            content.write(SECTOR_BYTES, &[2; SECTOR_BYTES]);
            content.set_len(SECTOR_BYTES);
            content.set_len(2 * SECTOR_BYTES);
            content
        };
        let expected = [vec![1, 1], vec![1, 2], vec![1], vec![1, 0]];
        assert_eq!(outcomes(resized), BTreeSet::from(expected));
        let synced = || {
            let mut content = resized();
            content.sync_range(0, 1);
            content
        };
        assert_eq!(outcomes(synced), BTreeSet::from([vec![1, 0]]));
    }

    #[test]
    fn a_size_within_a_sector_cuts_its_end_off() {
        let mut content = of(&[(0, 1)]);
        content.set_len(10);
        content.set_len(20);
        assert_eq!(content.read(0, 100), [[1; 10], [0; 10]].concat());
        content.sync();
        content.cut(&mut Rng::with_seed(1));
        assert_eq!(content.read(0, 100), [[1; 10], [0; 10]].concat());
    }

    #[test]
    fn lost_pages_are_readable_until_a_cut_and_no_later_sync_writes_them() {
        let mut lost = 0;
        for seed in 0..20 {
            let mut random = Rng::with_seed(seed);
            let mut content = of(&[(0, 1)]);
            content.sync();
            content.write(0, &[2; SECTOR_BYTES]);
            content.lose_pages(&mut random);
            assert_eq!(content.read(0, 1), [2]);
            content.write(SECTOR_BYTES, &[3; SECTOR_BYTES]);
            content.sync();
            content.cut(&mut random);
            lost += u32::from(content.read(0, 1) == [1]);
        }
        assert!((1..20).contains(&lost), "{lost}");
    }

    #[test]
    fn a_direct_write_that_failed_reads_as_the_drive_has_it() {
        let mut content = of(&[(0, 1)]);
        content.sync();
        for seed in 0..20 {
            let mut random = Rng::with_seed(seed);
            content.write(0, &[2; SECTOR_BYTES]);
            content.tear(0, SECTOR_BYTES, &mut random);
            let before = content.read(0, 1).to_vec();
            content.cut(&mut random);
            assert_eq!(content.read(0, 1), before);
        }
    }

    #[test]
    fn a_seed_repeats_a_cut() {
        let cut = || {
            let mut content = of(&[(0, 1), (1, 2), (2, 3), (3, 4)]);
            content.cut(&mut Rng::with_seed(7));
            content.now
        };
        assert_eq!(cut(), cut());
    }
}
