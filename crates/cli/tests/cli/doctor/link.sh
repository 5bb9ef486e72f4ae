# Makes an interface: its name; `up`, `down`, or `unplugged`, which is up without a carrier; and addresses.
link() {
    name=$1 state=$2
    shift 2
    if [ "$name" != lo ]; then
        ip link add "$name" type veth peer name "peer$name"
        ip link set "$name" addrgenmode none
        [ $state = unplugged ] || ip link set "peer$name" addrgenmode none up
    fi
    for address; do ip address add "$address" dev "$name" $(case $address in *:*) echo nodad;; esac); done
    [ $state = down ] || ip link set "$name" up
}
