case "$1" in
    remove|abort-install)
        rm -f "$START"
        if systemd_runs; then systemctl daemon-reload; fi
        ;;
    purge) forget ;;
esac
