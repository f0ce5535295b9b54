#!/bin/sh
# Made by 'tapswitch hook install'; 'tapswitch hook uninstall' takes it away.
# It hands what libvirt says over to tapswitchd.
hook='/opt/it'\''s/tapswitch-hook'
[ -x "$hook" ] || exit 0
exec "$hook" qemu "$@"
