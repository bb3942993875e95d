//! Options of accepted connections.

use super::*;
use nix::sys::socket::getsockopt;

#[tokio::test]
async fn a_connection_has_the_options_of_its_listener() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    set_socket_options(&listener);
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (accepted, _) = listener.accept().await.unwrap();
    let of = |socket| (getsockopt(socket, TcpNoDelay), getsockopt(socket, TcpUserTimeout), getsockopt(socket, Unsent));
    assert_eq!(of(&accepted), (Ok(true), Ok(UNREAD_MS), Ok(UNSENT)));
    assert_ne!(of(&client), of(&accepted), "the options differ from the kernel's defaults");
}
