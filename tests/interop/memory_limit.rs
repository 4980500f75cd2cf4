//! A memory limit of the service's group that leaves too little for what is configured. Needs a mount
//! namespace.

use std::time::Instant;

use pillarbox_simulator::Options;

use crate::kit::{PATIENCE, Site, look, metric, status};

/// A crash does not free the bodies: a kill for want of memory would repeat for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_memory_limit_lowers_the_budget_of_pending_messages_and_that_is_told() {
    const MAX: &str = "pillarbox_queue_max_bytes";
    let site = Site::with("[sending]\nretry_initial = \"1s\"", Options::default()).await;
    // 512 MiB for the process and 256 MiB for each of two other budgets leave as much.
    let server = site.start_by(site.service_with_memory_limit(1_536 << 20));
    assert_eq!(metric(&server, MAX).await, Some(f64::from(512 << 20)));
    let said = "leaves 512 MiB for pending messages, but sending.max_pending_bytes allows 1024 MiB";
    assert!(server.log().contains(said), "{}", server.log());
    let told = &status(&site)["conditions"];
    let told = told.as_array().unwrap().iter().find(|one| one["code"] == "queue_lowered").unwrap();
    assert!(told["message"].as_str().unwrap().contains(said), "{told}");
    assert!(look(&site, &server).await.contains(said));
    let doctor = String::from_utf8(site.run(&["doctor"]).stdout).unwrap();
    assert!(doctor.contains(said) && doctor.contains("Raise MemoryMax="), "{doctor}");
    site.reconfigure("[sending]", "[sending]\nmax_pending_bytes = 104857600");
    server.signal("HUP");
    let end = Instant::now() + PATIENCE;
    while metric(&server, MAX).await != Some(104_857_600.0) {
        assert!(Instant::now() < end, "{}", server.log());
    }
    while look(&site, &server).await.contains("queue_lowered") {
        assert!(Instant::now() < end, "it fits now");
    }
}
