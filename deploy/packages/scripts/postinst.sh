case "$1" in
    configure)
        set_up
        if [ -z "$2" ]; then start_daemon first; else start_daemon again; fi
        if [ ! -e "$CONFIG" ]; then
            say "not started: there is no $CONFIG. An example is in /usr/share/coordd; then: systemctl enable --now coordd"
        fi
        ;;
    abort-upgrade|abort-remove|abort-deconfigure)
        set_up
        start_daemon again
        ;;
esac
