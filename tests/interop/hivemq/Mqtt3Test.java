package penstock.interop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import com.hivemq.client.mqtt.MqttClient;
import com.hivemq.client.mqtt.MqttGlobalPublishFilter;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.mqtt3.Mqtt3BlockingClient;
import com.hivemq.client.mqtt.mqtt3.Mqtt3BlockingClient.Mqtt3Publishes;
import com.hivemq.client.mqtt.mqtt3.message.publish.Mqtt3Publish;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.Test;

/** MQTT 3.1.1. */
public final class Mqtt3Test extends VersionTest {
  private Mqtt3BlockingClient client(String name) {
    return MqttClient.builder()
        .useMqttVersion3()
        .identifier(named(name))
        .serverHost("127.0.0.1")
        .serverPort(port())
        .buildBlocking();
  }

  private Mqtt3BlockingClient connected(String name) {
    Mqtt3BlockingClient client = client(name);
    client.connect();
    return client;
  }

  private static boolean connectLasting(Mqtt3BlockingClient client) {
    return client.connectWith().cleanSession(false).send().isSessionPresent();
  }

  private static void subscribe(Mqtt3BlockingClient client, String filter, MqttQos qos) {
    client.subscribeWith().topicFilter(filter).qos(qos).send();
  }

  private void publish(Mqtt3BlockingClient client, String name, MqttQos qos, String text) {
    client.publishWith().topic(topic(name)).qos(qos).payload(bytes(text)).send();
  }

  private static Mqtt3Publish next(Mqtt3Publishes publishes) throws InterruptedException {
    return publishes.receive(PATIENCE_S, TimeUnit.SECONDS).orElseThrow();
  }

  private static String text(Mqtt3Publish message) {
    return text(message.getPayloadAsBytes());
  }

  @Test
  public void eachQosInBothDirections() throws Exception {
    Mqtt3BlockingClient client = connected("qos");
    try (Mqtt3Publishes all = client.publishes(MqttGlobalPublishFilter.ALL)) {
      subscribe(client, topic("qos"), MqttQos.EXACTLY_ONCE);
      for (MqttQos qos : MqttQos.values()) {
        publish(client, "qos", qos, "hello");
        Mqtt3Publish got = next(all);
        assertEquals("hello", text(got));
        assertEquals(qos, got.getQos());
      }
    }
    client.disconnect();
  }

  @Test
  public void whatIsRetainedComesToWhoSubscribesLater() throws Exception {
    Mqtt3BlockingClient device = connected("device");
    for (String state : List.of("off", "on")) {
      device
          .publishWith()
          .topic(topic("state"))
          .qos(MqttQos.AT_LEAST_ONCE)
          .payload(bytes(state))
          .retain(true)
          .send();
    }
    device.disconnect();
    Mqtt3BlockingClient late = connected("late");
    try (Mqtt3Publishes all = late.publishes(MqttGlobalPublishFilter.ALL)) {
      subscribe(late, topic("state"), MqttQos.AT_LEAST_ONCE);
      Mqtt3Publish got = next(all);
      assertEquals("on", text(got));
      assertTrue(got.isRetain());
    }
    late.disconnect();
  }

  @Test
  public void aSessionGoesOn() throws Exception {
    Mqtt3BlockingClient sleeper = client("sleeper");
    assertFalse(connectLasting(sleeper));
    subscribe(sleeper, topic("jobs"), MqttQos.EXACTLY_ONCE);
    sleeper.disconnect();
    Mqtt3BlockingClient boss = connected("boss");
    numbers().forEach(each -> publish(boss, "jobs", MqttQos.EXACTLY_ONCE, each));
    boss.disconnect();
    List<String> got = new ArrayList<>();
    try (Mqtt3Publishes all = sleeper.publishes(MqttGlobalPublishFilter.ALL)) {
      assertTrue(connectLasting(sleeper));
      while (got.size() < JOBS) {
        got.add(text(next(all)));
      }
    }
    assertEquals(numbers(), got);
    sleeper.disconnect();
  }

  @Test
  public void theWillOfAClientIsPublished() throws Exception {
    Mqtt3BlockingClient watcher = connected("watcher");
    Mqtt3BlockingClient mortal = client("mortal");
    try (Mqtt3Publishes all = watcher.publishes(MqttGlobalPublishFilter.ALL)) {
      subscribe(watcher, topic("gone"), MqttQos.AT_LEAST_ONCE);
      mortal
          .connectWith()
          .willPublish()
          .topic(topic("gone"))
          .qos(MqttQos.AT_LEAST_ONCE)
          .payload(bytes("bye"))
          .applyWillPublish()
          .send();
      connected("mortal").disconnect(); // takes over, so that the older connection ends
      assertEquals("bye", text(next(all)));
    }
    watcher.disconnect();
  }

  @Test
  public void membersOfAGroupShareIt() throws Exception {
    BlockingQueue<String> got = new LinkedBlockingQueue<>();
    List<Mqtt3BlockingClient> clients = new ArrayList<>();
    for (String name : List.of("member-1", "member-2")) {
      Mqtt3BlockingClient member = connected(name);
      member.toAsync().publishes(MqttGlobalPublishFilter.ALL, each -> got.add(text(each)));
      subscribe(member, "$share/crew/" + topic("work"), MqttQos.AT_LEAST_ONCE);
      clients.add(member);
    }
    Mqtt3BlockingClient boss = connected("boss");
    numbers().forEach(each -> publish(boss, "work", MqttQos.AT_LEAST_ONCE, each));
    assertAllOnce(got);
    clients.forEach(Mqtt3BlockingClient::disconnect);
    boss.disconnect();
  }
}
