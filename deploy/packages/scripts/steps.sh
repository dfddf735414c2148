# What the package does on a machine; each script of the Debian and of the RPM package begins with this file.
# Its version and the ledger schema that this version knows are filled in when the package is built.

CONFIG=/etc/coordd/coordd.toml
# There while a daemon is to be started once the files are in place. It outlives an interrupted upgrade.
START=/run/coordd-start
UNIT=coordd.service
# The units of runs, and where their file stays while some of them outlive the package.
RUN_UNIT=coordd-run@.service
KEPT=/run/systemd/system

say() { echo "coordd: $*" >&2; }

systemd_runs() { [ -d /run/systemd/system ]; }

# Only the daemon stops (KillMode=process): runs go on, and the next daemon adopts them.
stop_daemon() {
    systemd_runs || return 0
    case $(systemctl show --property=ActiveState --value "$UNIT") in
        active|activating|reloading) systemctl stop "$UNIT" ;;
        *) return 1 ;;
    esac
}

stop_for_upgrade() {
    if systemd_runs && stop_daemon; then : > "$START"; fi
}

# A node that has its configuration already is started by the installation; another one waits for its configuration.
plan_first_start() {
    if [ -e "$CONFIG" ]; then echo first > "$START"; fi
}

# The schema of the SQLite ledger of this machine; nothing when there is none, or when it is elsewhere.
ledger_schema() {
    command -v python3 > /dev/null && id coordd > /dev/null 2>&1 || return 0
    runuser -u coordd -- python3 -I - "$CONFIG" 2> /dev/null <<'END' || true
import sqlite3, sys, tomllib
try:
    with open(sys.argv[1], "rb") as file:
        url = tomllib.load(file).get("cluster", {}).get("ledger", "sqlite:////var/lib/coordd/ledger.db")
except FileNotFoundError:
    url = "sqlite:////var/lib/coordd/ledger.db"
if url.startswith("sqlite:///"):
    path = url.removeprefix("sqlite:///")
    print(sqlite3.connect(f"file:{path}?mode=ro", uri=True).execute("PRAGMA user_version").fetchone()[0], path)
END
}

# A ledger that a newer version has migrated cannot be used by this one. Said before anything is replaced.
refuse_newer_ledger() {
    found=$(ledger_schema)
    if [ -n "$found" ] && [ "${found%% *}" -gt @SCHEMA@ ]; then
        say "the ledger ${found#* } has schema ${found%% *}, and coordd @VERSION@ knows schema @SCHEMA@:" \
            "a newer version has written it. Nothing was changed. Stay with the installed version; or stop the" \
            "daemon, put back the ledger that was saved before the upgrade, and install @VERSION@ again."
        exit 1
    fi
}

# User, directories, unit. Safe to repeat: an interrupted installation does all of it again.
set_up() {
    systemd-sysusers coordd.conf
    systemd-tmpfiles --create coordd.conf || say "systemd-tmpfiles has failed; see above"
    rm -f "$KEPT/$RUN_UNIT"
    if systemd_runs; then systemctl daemon-reload; fi
}

may_start() {
    [ -x /usr/sbin/policy-rc.d ] || return 0
    answer=0
    /usr/sbin/policy-rc.d coordd start || answer=$?
    [ "$answer" != 101 ]
}

# $1: "first" on a first installation, where the unit is enabled too. A configuration that this version refuses makes
# the installation fail, so that an upgrade of many nodes stops at the first one.
start_daemon() {
    [ -e "$START" ] || return 0
    if [ "$1" = first ]; then systemctl enable "$UNIT" > /dev/null 2>&1 || say "systemctl enable $UNIT has failed"; fi
    if ! systemd_runs || ! may_start; then return 0; fi
    answer=0
    problems=$(/usr/bin/coordd check-config --as-service "$CONFIG" 2>&1) || answer=$?
    if [ "$answer" = 78 ]; then
        echo "$problems" >&2
        say "$CONFIG cannot be used by version @VERSION@, so the daemon was not started; runs go on." \
            "Mend what is named above, then: dpkg --configure -a (with rpm: systemctl start coordd)"
        exit 1
    fi
    if ! systemctl start "$UNIT"; then
        say "the daemon has not started: journalctl -u coordd says why. Then: dpkg --configure -a"
        exit 1
    fi
    rm -f "$START"
}

say_what_lives_on() {
    slice=/sys/fs/cgroup/system.slice
    left=$(find "$slice/$UNIT" "$slice"/system-coordd*run.slice -name cgroup.procs -exec cat {} + 2> /dev/null | wc -l)
    if [ "$left" != 0 ]; then say "$left processes of runs go on until their runs end"; fi
}

# A unit that runs needs its file: without it systemd no longer listens to the unit, and the watchdog ends the run.
keep_units_of_runs() {
    systemd_runs || return 0
    if [ -n "$(systemctl list-units --plain --no-legend 'coordd-run@*')" ]; then
        mkdir -p "$KEPT"
        cp "/usr/lib/systemd/system/$RUN_UNIT" "$KEPT/$RUN_UNIT"
    fi
}

# Data stays: /var/lib/coordd with its user, and what the site has put under /etc/coordd.
forget() {
    rm -f "$START" "/etc/systemd/system/multi-user.target.wants/$UNIT"
    rm -rf /run/coordd
    rmdir --ignore-fail-on-non-empty /etc/coordd/jobs.d /etc/coordd 2> /dev/null || true
    if systemd_runs; then
        systemctl daemon-reload
        systemctl reset-failed "$UNIT" 2> /dev/null || true
    fi
}
