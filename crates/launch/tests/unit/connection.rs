use super::*;

#[test]
fn address_of_this_host_is_the_only_one_that_is_listened_on() {
    let own = own_hosts().into_iter().filter_map(|host| host.parse().ok());
    for address in own.chain(["127.0.0.2".parse().unwrap()]).filter(|own: &IpAddr| own.is_ipv4()) {
        let listener = listen(Some(&address.to_string()), 0).unwrap().local_addr().unwrap();
        assert_eq!(listener.ip(), address);
    }
}

#[test]
fn name_that_leads_to_another_host_is_noticed() {
    let leads = |host| leads_elsewhere(host, &Deadline::after(Duration::from_secs(10)));
    assert_eq!(leads("192.0.2.1").unwrap(), "192.0.2.1 leads to 192.0.2.1, which is no address of this host");
    assert_eq!(leads("127.0.0.1"), None);
    assert_eq!(leads("localhost"), None);
}

#[test]
fn name_is_listened_for_on_all_interfaces() {
    for host in ["0.0.0.0", "node1.example"] {
        let port = listen(Some(host), 0).unwrap();
        TcpStream::connect(("127.0.0.1", port.local_addr().unwrap().port())).unwrap();
    }
}
