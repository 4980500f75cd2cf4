#!/bin/sh
# Installs the alert rules into Prometheus and the dashboard into Grafana, and says what is left to
# do. It changes no file but its own, so run it again after each upgrade.
#
# Usage: monitoring/install.sh [PROMETHEUS_DIRECTORY [GRAFANA_PROVISIONING_DIRECTORY]], by default
# /etc/prometheus and /etc/grafana/provisioning.
set -eu

here="$(cd -- "$(dirname -- "$0")" && pwd)"
prometheus="${1:-/etc/prometheus}"
grafana="${2:-/etc/grafana/provisioning}"

for directory in "$prometheus" "$grafana"; do
    if [ ! -d "$directory" ]; then
        echo "install.sh: $directory does not exist; name the directories as arguments" >&2
        exit 1
    fi
done

install -d -m 755 "$prometheus/pillarbox" "$grafana/dashboards/pillarbox"
install -m 644 "$here/alerts.yml" "$prometheus/pillarbox/alerts.yml"
install -m 644 "$here/dashboard.json" "$grafana/dashboards/pillarbox/dashboard.json"
cat >"$grafana/dashboards/pillarbox.yaml" <<YAML
apiVersion: 1
providers:
  - name: pillarbox
    type: file
    options:
      path: $grafana/dashboards/pillarbox
YAML
chmod 644 "$grafana/dashboards/pillarbox.yaml"

echo "The rules are in $prometheus/pillarbox, the dashboard is in $grafana/dashboards/pillarbox."
if ! grep -qs 'pillarbox/' "$prometheus/prometheus.yml"; then
    cat <<YAML
Add this to $prometheus/prometheus.yml, with the address of operator_listen:

rule_files:
  - pillarbox/alerts.yml
scrape_configs:
  - job_name: pillarbox
    scrape_interval: 15s
    static_configs:
      - targets: ["127.0.0.1:8026"]

YAML
fi
echo "Then reload Prometheus and restart Grafana."
