case "$1" in
    upgrade|deconfigure) stop_for_upgrade ;;
    remove)
        stop_daemon || true
        keep_units_of_runs
        say_what_lives_on
        ;;
esac
