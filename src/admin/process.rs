//! Resources of the process itself, from Linux's `/proc` (proc(5)); elsewhere nothing is known.

use std::fs;
use std::time::SystemTime;

/// Resources that the process uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Process {
    /// Resident memory, in bytes.
    pub resident_bytes: Option<u64>,
    /// Open file descriptors.
    pub open_descriptors: Option<u64>,
    /// Limit of open file descriptors.
    pub max_descriptors: Option<u64>,
}

impl Process {
    pub fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        Self {
            resident_bytes: field(&status, "VmRSS:").map(|kibibytes| kibibytes * 1024),
            open_descriptors: open_descriptors(),
            max_descriptors: field(&limits, "Max open files"),
        }
    }
}

/// Number of open file descriptors. Since Linux 6.2 the directory's size says so; before that it is
/// zero, and they have to be counted.
fn open_descriptors() -> Option<u64> {
    const DIRECTORY: &str = "/proc/self/fd";
    match fs::metadata(DIRECTORY).ok()?.len() {
        0 => fs::read_dir(DIRECTORY).ok().map(|descriptors| descriptors.count() as u64),
        open => Some(open),
    }
}

/// The first number behind a line's name.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// An instant in seconds since the Unix epoch.
pub fn unix_seconds(at: SystemTime) -> f64 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_proc_writes_them() {
        assert_eq!(field("VmPeak:\t  9 kB\nVmRSS:\t  5120 kB\n", "VmRSS:"), Some(5120));
        let limits = "Max open files            1024                 524288               files\n";
        assert_eq!(field(limits, "Max open files"), Some(1024));
        assert_eq!(field("Max open files            unlimited  x\n", "Max open files"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_somewhat_large_and_has_files_open() {
        let process = Process::now();
        assert!(process.resident_bytes.unwrap() > 1 << 20, "{process:?}");
        assert!(process.open_descriptors.unwrap() >= 3, "{process:?}");
    }
}
