//! An unmodified rumqttc against a realm: `suite PORT`.
//!
//! Says in lines of one form what has become of each test. The tests are written once, and
//! compiled for each of its two clients: that of MQTT 3.1.1 and that of MQTT 5.

use std::panic;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);
const JOBS: usize = 20;

type Test = (&'static str, fn(u16));

macro_rules! tests {
    ($version:ident, $client:path, $packets:path, $levels:path, $will:expr, $lasting:expr) => {
        mod $version {
            use super::{JOBS, PATIENCE};
            use std::sync::mpsc::{channel, Receiver, Sender};
            use std::thread;
            use $client::{Client, Connection, Event, MqttOptions};
            use $levels::*; // its QoS
            use $packets::{LastWill, Packet, Publish};

            /// A client that is let in. What comes for it is read by a thread of its own.
            pub struct Known {
                pub client: Client,
                pub is_present: bool,
                got: Receiver<Packet>,
            }

            pub fn name(what: &str) -> String {
                format!("rumqttc/{}/{}", stringify!($version), what)
            }

            pub fn options(port: u16, id: &str) -> MqttOptions {
                let id = name(id).replace('/', "-");
                let mut options = MqttOptions::new(id, "127.0.0.1", port);
                options.set_keep_alive(PATIENCE);
                options
            }

            /// The connection, once it is let in, and whether it has found a session.
            fn let_in(options: MqttOptions) -> (Client, Connection, bool) {
                let (client, mut connection) = Client::new(options, 100);
                loop {
                    let event = connection
                        .recv_timeout(PATIENCE)
                        .expect("an answer in time");
                    if let Event::Incoming(Packet::ConnAck(answer)) = event.expect("is let in") {
                        return (client, connection, answer.session_present);
                    }
                }
            }

            impl Known {
                pub fn new(options: MqttOptions) -> Known {
                    let (sender, got) = channel();
                    Known::telling(options, sender, got)
                }

                fn telling(
                    options: MqttOptions,
                    to: Sender<Packet>,
                    got: Receiver<Packet>,
                ) -> Known {
                    let (client, mut connection, is_present) = let_in(options);
                    thread::spawn(move || {
                        for event in connection.iter() {
                            match event {
                                Ok(Event::Incoming(packet)) => drop(to.send(packet)),
                                Ok(_) => {}
                                Err(_) => return,
                            }
                        }
                    });
                    Known {
                        client,
                        is_present,
                        got,
                    }
                }

                /// So many packets of a kind, in their order.
                fn wait<T>(&self, count: usize, kind: fn(Packet) -> Option<T>) -> Vec<T> {
                    let mut found = Vec::new();
                    while found.len() < count {
                        let packet = self.got.recv_timeout(PATIENCE).expect("a packet in time");
                        found.extend(kind(packet));
                    }
                    found
                }

                pub fn take(&self, count: usize) -> Vec<Publish> {
                    self.wait(count, |packet| match packet {
                        Packet::Publish(publish) => Some(publish),
                        _ => None,
                    })
                }

                pub fn subscribe(&self, filter: &str, qos: QoS) {
                    self.client.subscribe(filter, qos).unwrap();
                    self.wait(1, |packet| match packet {
                        Packet::SubAck(_) => Some(()),
                        _ => None,
                    });
                }

                /// Publish with QoS 1 or 2, and wait for the answers.
                pub fn publish(&self, topic: &str, qos: QoS, retain: bool, texts: &[String]) {
                    for text in texts {
                        self.client
                            .publish(topic, qos, retain, text.clone())
                            .unwrap();
                    }
                    self.wait(texts.len(), |packet| match packet {
                        Packet::PubAck(_) | Packet::PubComp(_) => Some(()),
                        _ => None,
                    });
                }

                pub fn leave(self) {
                    self.client.disconnect().unwrap();
                    while self.got.recv_timeout(PATIENCE).is_ok() {} // until its thread ends
                }
            }

            fn text(publish: &Publish) -> String {
                String::from_utf8(publish.payload.to_vec()).unwrap()
            }

            fn numbers() -> Vec<String> {
                (0..JOBS).map(|number| number.to_string()).collect()
            }

            pub fn each_qos(port: u16) {
                let one = Known::new(options(port, "qos"));
                one.subscribe(&name("qos"), QoS::ExactlyOnce);
                for (qos, level) in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]
                    .into_iter()
                    .enumerate()
                {
                    one.client
                        .publish(name("qos"), level, false, qos.to_string())
                        .unwrap();
                    let got = one.take(1).remove(0);
                    assert_eq!((text(&got), got.qos as usize), (qos.to_string(), qos));
                }
                one.leave();
            }

            pub fn retained(port: u16) {
                let device = Known::new(options(port, "device"));
                let states = ["off", "on"].map(String::from);
                device.publish(&name("state"), QoS::AtLeastOnce, true, &states);
                device.leave();
                let late = Known::new(options(port, "late"));
                late.client
                    .subscribe(name("state"), QoS::AtLeastOnce)
                    .unwrap();
                let got = late.take(1).remove(0);
                assert_eq!((text(&got).as_str(), got.retain), ("on", true));
                late.leave();
            }

            pub fn session(port: u16) {
                let lasting = || {
                    let mut lasting = options(port, "sleeper");
                    $lasting(&mut lasting);
                    lasting
                };
                let sleeper = Known::new(lasting());
                assert!(!sleeper.is_present);
                sleeper.subscribe(&name("jobs"), QoS::ExactlyOnce);
                sleeper.leave();
                let boss = Known::new(options(port, "boss"));
                boss.publish(&name("jobs"), QoS::ExactlyOnce, false, &numbers());
                boss.leave();
                let again = Known::new(lasting());
                assert!(again.is_present);
                assert_eq!(
                    again.take(JOBS).iter().map(text).collect::<Vec<_>>(),
                    numbers()
                );
                again.leave();
            }

            pub fn will(port: u16) {
                let watcher = Known::new(options(port, "watcher"));
                watcher.subscribe(&name("gone"), QoS::AtLeastOnce);
                let mut mortal = options(port, "mortal");
                mortal.set_last_will($will(name("gone"), QoS::AtLeastOnce));
                drop(let_in(mortal)); // without a goodbye
                assert_eq!(text(&watcher.take(1)[0]), "bye");
                watcher.leave();
            }

            pub fn shared(port: u16) {
                let (sender, all) = channel();
                let members = ["member-1", "member-2"].map(|id| {
                    let member = Known::new(options(port, id));
                    member.subscribe(&format!("$share/crew/{}", name("work")), QoS::AtLeastOnce);
                    member
                });
                let boss = Known::new(options(port, "boss"));
                boss.publish(&name("work"), QoS::AtLeastOnce, false, &numbers());
                let clients = members.map(|Known { client, got, .. }| {
                    let sender = sender.clone();
                    thread::spawn(move || got.iter().all(|packet| sender.send(packet).is_ok()));
                    client
                });
                let mut got: Vec<usize> = Vec::new();
                while got.len() < JOBS {
                    let packet = all.recv_timeout(PATIENCE).expect("a packet in time");
                    if let Packet::Publish(publish) = packet {
                        got.push(text(&publish).parse().unwrap());
                    }
                }
                got.sort_unstable();
                assert_eq!(got, (0..JOBS).collect::<Vec<_>>());
                clients
                    .iter()
                    .for_each(|client| client.disconnect().unwrap());
                boss.leave();
            }

            pub const ALL: [super::Test; 5] = [
                (concat!(stringify!($version), "::each_qos"), each_qos),
                (concat!(stringify!($version), "::retained"), retained),
                (concat!(stringify!($version), "::session"), session),
                (concat!(stringify!($version), "::will"), will),
                (concat!(stringify!($version), "::shared"), shared),
            ];
        }
    };
}

tests!(
    v4,
    rumqttc,
    rumqttc,
    rumqttc,
    |topic: String, qos| LastWill::new(topic, "bye", qos, false),
    |lasting: &mut MqttOptions| {
        lasting.set_clean_session(false);
    }
);

tests!(
    v5,
    rumqttc::v5,
    rumqttc::v5::mqttbytes::v5,
    rumqttc::v5::mqttbytes,
    |topic: String, qos| LastWill::new(topic, "bye", qos, false, None),
    |lasting: &mut MqttOptions| {
        lasting.set_clean_start(false);
        lasting.set_session_expiry_interval(Some(600));
    }
);

/// User properties, a response topic and correlation data, which only MQTT 5 has.
fn request(port: u16) {
    use rumqttc::v5::mqttbytes::{v5::PublishProperties, QoS};
    let server = v5::Known::new(v5::options(port, "server"));
    server.subscribe(&v5::name("double"), QoS::AtLeastOnce);
    let asker = v5::Known::new(v5::options(port, "asker"));
    asker.subscribe(&v5::name("answers"), QoS::AtLeastOnce);
    let own = PublishProperties {
        response_topic: Some(v5::name("answers")),
        correlation_data: Some(vec![0, 255].into()),
        content_type: Some("text/plain".into()),
        user_properties: vec![("unit".into(), "C".into()), ("unit".into(), "K".into())],
        ..Default::default()
    };
    asker
        .client
        .publish_with_properties(
            v5::name("double"),
            QoS::AtLeastOnce,
            false,
            "21",
            own.clone(),
        )
        .unwrap();
    let asked = server.take(1).remove(0).properties.unwrap();
    assert_eq!(asked, own);
    let back = PublishProperties {
        correlation_data: asked.correlation_data,
        ..Default::default()
    };
    let topic = asked.response_topic.unwrap();
    server
        .client
        .publish_with_properties(topic, QoS::AtLeastOnce, false, "42", back)
        .unwrap();
    let answer = asker.take(1).remove(0);
    let told = answer.properties.unwrap();
    assert_eq!(&answer.payload[..], b"42");
    assert_eq!(told.correlation_data.as_deref(), Some(&[0, 255][..]));
    server.leave();
    asker.leave();
}

fn main() {
    let port = std::env::args()
        .nth(1)
        .expect("a port")
        .parse()
        .expect("a port");
    let mut all: Vec<Test> = [v4::ALL, v5::ALL].concat();
    all.push(("v5::request", request));
    let mut failed = 0;
    for &(name, test) in &all {
        panic::set_hook(Box::new(move |why| {
            println!("FAILED {}: {}", name, why.to_string().replace('\n', " "));
        }));
        failed += usize::from(panic::catch_unwind(|| test(port)).is_err());
    }
    println!("RAN {} FAILED {} IGNORED 0", all.len(), failed);
}
