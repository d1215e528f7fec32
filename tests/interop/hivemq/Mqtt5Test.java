package penstock.interop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import com.hivemq.client.mqtt.MqttClient;
import com.hivemq.client.mqtt.MqttGlobalPublishFilter;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.mqtt5.Mqtt5BlockingClient;
import com.hivemq.client.mqtt.mqtt5.Mqtt5BlockingClient.Mqtt5Publishes;
import com.hivemq.client.mqtt.mqtt5.Mqtt5ClientBuilder;
import com.hivemq.client.mqtt.mqtt5.datatypes.Mqtt5UserProperties;
import com.hivemq.client.mqtt.mqtt5.datatypes.Mqtt5UserProperty;
import com.hivemq.client.mqtt.mqtt5.message.disconnect.Mqtt5DisconnectReasonCode;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5Publish;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.Test;

/** MQTT 5. */
public final class Mqtt5Test extends VersionTest {
  private Mqtt5ClientBuilder builder(String name) {
    return MqttClient.builder()
        .useMqttVersion5()
        .identifier(named(name))
        .serverHost("127.0.0.1")
        .serverPort(port());
  }

  private Mqtt5BlockingClient connected(String name) {
    Mqtt5BlockingClient client = builder(name).buildBlocking();
    client.connect();
    return client;
  }

  private static boolean connectLasting(Mqtt5BlockingClient client) {
    return client
        .connectWith()
        .cleanStart(false)
        .sessionExpiryInterval(600)
        .send()
        .isSessionPresent();
  }

  private static void subscribe(Mqtt5BlockingClient client, String filter, MqttQos qos) {
    client.subscribeWith().topicFilter(filter).qos(qos).send();
  }

  private void publish(Mqtt5BlockingClient client, String name, MqttQos qos, String text) {
    client.publishWith().topic(topic(name)).qos(qos).payload(bytes(text)).send();
  }

  private static Mqtt5Publish next(Mqtt5Publishes publishes) throws InterruptedException {
    return publishes.receive(PATIENCE_S, TimeUnit.SECONDS).orElseThrow();
  }

  private static String text(Mqtt5Publish message) {
    return text(message.getPayloadAsBytes());
  }

  @Test
  public void eachQosInBothDirections() throws Exception {
    Mqtt5BlockingClient client = connected("qos");
    try (Mqtt5Publishes all = client.publishes(MqttGlobalPublishFilter.ALL)) {
      subscribe(client, topic("qos"), MqttQos.EXACTLY_ONCE);
      for (MqttQos qos : MqttQos.values()) {
        publish(client, "qos", qos, "hello");
        Mqtt5Publish got = next(all);
        assertEquals("hello", text(got));
        assertEquals(qos, got.getQos());
      }
    }
    client.disconnect();
  }

  @Test
  public void whatIsRetainedComesToWhoSubscribesLater() throws Exception {
    Mqtt5BlockingClient device = connected("device");
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
    Mqtt5BlockingClient late = connected("late");
    try (Mqtt5Publishes all = late.publishes(MqttGlobalPublishFilter.ALL)) {
      subscribe(late, topic("state"), MqttQos.AT_LEAST_ONCE);
      Mqtt5Publish got = next(all);
      assertEquals("on", text(got));
      assertTrue(got.isRetain());
    }
    late.disconnect();
  }

  @Test
  public void aSessionGoesOn() throws Exception {
    Mqtt5BlockingClient sleeper = builder("sleeper").buildBlocking();
    assertFalse(connectLasting(sleeper));
    subscribe(sleeper, topic("jobs"), MqttQos.EXACTLY_ONCE);
    sleeper.disconnect();
    Mqtt5BlockingClient boss = connected("boss");
    numbers().forEach(each -> publish(boss, "jobs", MqttQos.EXACTLY_ONCE, each));
    boss.disconnect();
    List<String> got = new ArrayList<>();
    try (Mqtt5Publishes all = sleeper.publishes(MqttGlobalPublishFilter.ALL)) {
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
    Mqtt5BlockingClient watcher = connected("watcher");
    Mqtt5BlockingClient mortal = builder("mortal").buildBlocking();
    try (Mqtt5Publishes all = watcher.publishes(MqttGlobalPublishFilter.ALL)) {
      subscribe(watcher, topic("gone"), MqttQos.AT_LEAST_ONCE);
      mortal
          .connectWith()
          .willPublish()
          .topic(topic("gone"))
          .qos(MqttQos.AT_LEAST_ONCE)
          .payload(bytes("bye"))
          .userProperties(Mqtt5UserProperties.of(Mqtt5UserProperty.of("unit", "C")))
          .applyWillPublish()
          .send();
      mortal
          .disconnectWith()
          .reasonCode(Mqtt5DisconnectReasonCode.DISCONNECT_WITH_WILL_MESSAGE)
          .send();
      Mqtt5Publish got = next(all);
      assertEquals("bye", text(got));
      assertEquals(
          List.of(Mqtt5UserProperty.of("unit", "C")), got.getUserProperties().asList());
    }
    watcher.disconnect();
  }

  @Test
  public void membersOfAGroupShareIt() throws Exception {
    BlockingQueue<String> got = new LinkedBlockingQueue<>();
    List<Mqtt5BlockingClient> clients = new ArrayList<>();
    for (String name : List.of("member-1", "member-2")) {
      Mqtt5BlockingClient member = connected(name);
      member.toAsync().publishes(MqttGlobalPublishFilter.ALL, each -> got.add(text(each)));
      subscribe(member, "$share/crew/" + topic("work"), MqttQos.AT_LEAST_ONCE);
      clients.add(member);
    }
    Mqtt5BlockingClient boss = connected("boss");
    numbers().forEach(each -> publish(boss, "work", MqttQos.AT_LEAST_ONCE, each));
    assertAllOnce(got);
    clients.forEach(Mqtt5BlockingClient::disconnect);
    boss.disconnect();
  }

  @Test
  public void aRequestIsAnswered() throws Exception {
    Mqtt5BlockingClient server = connected("server");
    Mqtt5BlockingClient asker = connected("asker");
    byte[] correlation = {0, (byte) 0xff};
    Mqtt5UserProperties units =
        Mqtt5UserProperties.of(
            Mqtt5UserProperty.of("unit", "C"), Mqtt5UserProperty.of("unit", "K"));
    try (Mqtt5Publishes asked = server.publishes(MqttGlobalPublishFilter.ALL);
        Mqtt5Publishes answers = asker.publishes(MqttGlobalPublishFilter.ALL)) {
      subscribe(server, topic("double"), MqttQos.AT_LEAST_ONCE);
      subscribe(asker, topic("answers"), MqttQos.AT_LEAST_ONCE);
      asker
          .publishWith()
          .topic(topic("double"))
          .qos(MqttQos.AT_LEAST_ONCE)
          .payload(bytes("21"))
          .contentType("text/plain")
          .responseTopic(topic("answers"))
          .correlationData(correlation)
          .userProperties(units)
          .send();
      Mqtt5Publish request = next(asked);
      assertEquals(units, request.getUserProperties());
      assertEquals("text/plain", request.getContentType().orElseThrow().toString());
      server
          .publishWith()
          .topic(request.getResponseTopic().orElseThrow())
          .qos(MqttQos.AT_LEAST_ONCE)
          .payload(bytes("42"))
          .correlationData(request.getCorrelationData().orElseThrow())
          .send();
      Mqtt5Publish answer = next(answers);
      assertEquals("42", text(answer));
      ByteBuffer told = answer.getCorrelationData().orElseThrow();
      byte[] came = new byte[told.remaining()];
      told.get(came);
      assertArrayEquals(correlation, came);
    }
    server.disconnect();
    asker.disconnect();
  }
}
