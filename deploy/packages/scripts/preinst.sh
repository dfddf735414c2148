case "$1" in
    install) plan_first_start ;;
    upgrade) refuse_newer_ledger ;;
esac
