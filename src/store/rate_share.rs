//! Rate share: how the nodes divide the account's sending rate.

/// Part of the pace that a node requests, from 0 to 1, if all nodes have these demands. A tenth is
/// divided evenly, so that a node without messages sends its first ones at once.
pub(super) fn part_of_pace(own: u32, all: impl Iterator<Item = u32>) -> f64 {
    const EVENLY: f64 = 0.1;
    let (mut nodes, mut demand) = (0.0, 0.0);
    for one in all {
        nodes += 1.0;
        demand += f64::from(one);
    }
    if demand > 0.0 {
        EVENLY / nodes + (1.0 - EVENLY) * f64::from(own) / demand
    } else {
        1.0 / nodes
    }
}
