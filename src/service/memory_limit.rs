//! Memory that the service may have (cgroups(7)), and the budget of pending messages that fits into
//! it. A crash does not free the bodies, so a kill for want of memory would repeat for ever.

use std::fs;
use std::path::Path;

use tracing::warn;

use pillarbox_config::Config;

/// Directory of the cgroups.
const ROOT: &str = "/sys/fs/cgroup";
/// Memory of the process beside its budgets, in bytes.
const BESIDE_BUDGETS: usize = 512 * MIB;
/// The least budget, in requests of the largest size: the least that the configuration may say.
const LEAST_REQUESTS: usize = 4;
const MIB: usize = 1024 * 1024;

/// Returns the budget of pending messages in bytes: as the configuration says, or less if the memory
/// limit leaves less. The log says so then.
pub(super) fn pending_bytes(config: &Config) -> usize {
    let configured = config.sending.max_pending_bytes;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some(limit) = limit(Path::new(ROOT), &groups) else { return configured };
    let budget = fitting(config, limit);
    if budget < configured {
        warn!(
            "the memory limit of {} MiB leaves {} MiB for pending messages, but \
             sending.max_pending_bytes allows {} MiB: lower that value, max_reading_bytes or \
             max_writing_bytes, or raise MemoryMax= of pillarbox.service and pillarbox.slice",
            limit / MIB,
            budget / MIB,
            configured / MIB
        );
    }
    budget
}

fn fitting(config: &Config, limit: usize) -> usize {
    let others = config.max_reading_bytes + config.max_writing_bytes + BESIDE_BUDGETS;
    let least = LEAST_REQUESTS * config.max_request_bytes;
    config.sending.max_pending_bytes.min(limit.saturating_sub(others).max(least))
}

/// Returns the least limit of these groups, as `/proc/self/cgroup` names them, and of all that they
/// are in.
fn limit(root: &Path, groups: &str) -> Option<usize> {
    let limits = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
        let (root, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => return Vec::new(),
        };
        // Of a group outside of this process's namespace, the path begins with "..".
        let group = Path::new(group.trim_start_matches('/'));
        let groups = group.ancestors().map(|group| root.join(group).join(file));
        groups.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok()).collect()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_on_the_way_to_the_root_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |group: &str, file: &str, limit: &str| {
            let group = root.path().join(group);
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join(file), format!("{limit}\n")).unwrap();
        };
        let limit = |groups| limit(root.path(), groups);
        assert_eq!(limit("0::/\n"), None);
        write("pillarbox.slice/pillarbox.service", "memory.max", "max");
        assert_eq!(limit("0::/pillarbox.slice/pillarbox.service\n"), None);
        write("pillarbox.slice/pillarbox.service", "memory.max", "5000");
        assert_eq!(limit("0::/pillarbox.slice/pillarbox.service\n"), Some(5000));
        write("pillarbox.slice", "memory.max", "4000");
        assert_eq!(limit("0::/pillarbox.slice/pillarbox.service\n"), Some(4000));
        assert_eq!(limit("0::/other.slice\n"), None);
        write("memory/a", "memory.limit_in_bytes", "300");
        write("memory", "memory.limit_in_bytes", "9223372036854771712");
        assert_eq!(limit("7:blkio:/a\n4:cpu,memory:/a/b\n0::/\n"), Some(300));
    }

    #[test]
    fn the_budget_fits_into_the_limit_and_takes_the_largest_requests() {
        let config = Config::default();
        let budget = |mib: usize| fitting(&config, mib * MIB) / MIB;
        // 1 GiB for pending messages, twice 256 MiB, and the process.
        assert_eq!(budget(4096), 1024);
        assert_eq!(budget(2048), 1024);
        assert_eq!(budget(1536), 512);
        assert_eq!(budget(512), LEAST_REQUESTS * config.max_request_bytes / MIB);
    }
}
