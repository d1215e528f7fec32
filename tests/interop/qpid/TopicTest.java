package penstock.interop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import jakarta.jms.InvalidClientIDRuntimeException;
import jakarta.jms.InvalidDestinationRuntimeException;
import jakarta.jms.JMSConsumer;
import jakarta.jms.JMSContext;
import jakarta.jms.JMSRuntimeException;
import jakarta.jms.TemporaryTopic;
import java.util.Set;
import java.util.TreeSet;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.junit.Test;

/** Topics: subscriptions that live as long as their consumer, durable ones, shared ones. */
public final class TopicTest extends RealmTest {
  private void publish(String... texts) {
    JMSContext publisher = open();
    for (String text : texts) {
      publisher.createProducer().setProperty("text", text).send(topic(), text);
    }
  }

  @Test
  public void everySubscriberGetsEverythingFromItsBeginningOn() throws Exception {
    JMSConsumer first = open().createConsumer(topic());
    publish("a");
    JMSConsumer second = open().createConsumer(topic());
    publish("b");

    assertEquals("a", first.receiveBody(String.class, LONG));
    assertEquals("b", first.receiveBody(String.class, LONG));
    assertEquals("b", second.receiveBody(String.class, LONG));
    assertNull(first.receive(SHORT));
    assertNull(second.receive(SHORT));
  }

  @Test
  public void aDurableSubscriptionKeepsWhatItsClientMisses() throws Exception {
    JMSContext client = open("durable-client");
    client.createDurableConsumer(topic(), "kept");
    client.close();
    publish("a", "b");

    JMSContext again = open("durable-client");
    JMSConsumer consumer = again.createDurableConsumer(topic(), "kept");

    assertEquals("a", consumer.receiveBody(String.class, LONG));
    assertEquals("b", consumer.receiveBody(String.class, LONG));
    consumer.close();
    again.unsubscribe("kept");
    assertThrows(InvalidDestinationRuntimeException.class, () -> again.unsubscribe("kept"));
  }

  @Test
  public void afterUnsubscribingNothingIsKept() throws Exception {
    JMSContext client = open("leaving-client");
    client.createDurableConsumer(topic(), "left").close();
    client.unsubscribe("left");
    publish("a");

    assertNull(client.createDurableConsumer(topic(), "left").receive(SHORT));
    client.close();
    JMSContext again = open("leaving-client");
    again.unsubscribe("left");
  }

  @Test
  public void anotherSelectorMakesADurableSubscriptionAnew() throws Exception {
    JMSContext client = open("changing-client");
    client.createDurableConsumer(topic(), "changed", "text = 'a'", false).close();
    publish("a", "b");

    JMSConsumer consumer = client.createDurableConsumer(topic(), "changed", "text = 'b'", false);

    assertNull(consumer.receive(SHORT));
    publish("a", "b");
    assertEquals("b", consumer.receiveBody(String.class, LONG));
    consumer.close();
    client.unsubscribe("changed");
  }

  @Test
  public void aDurableSubscriptionHasOneConsumer() {
    JMSContext client = open("single-client");
    client.createDurableConsumer(topic(), "single");

    assertThrows(
        JMSRuntimeException.class, () -> client.createDurableConsumer(topic(), "single"));
  }

  @Test
  public void aSubscriptionInUseIsNotUnsubscribed() {
    JMSContext client = open("using-client");
    client.createDurableConsumer(topic(), "used");

    assertThrows(JMSRuntimeException.class, () -> client.unsubscribe("used"));
  }

  @Test
  public void consumersOfASharedSubscriptionShareIt() throws Exception {
    JMSConsumer first = open().createSharedConsumer(topic(), "shared");
    JMSConsumer second = open().createSharedConsumer(topic(), "shared");
    JMSConsumer other = open().createSharedConsumer(topic(), "other");
    publish("a", "b", "c", "d");

    assertEquals(Set.of("a", "b", "c", "d"), drained(first, second));
    assertEquals(Set.of("a", "b", "c", "d"), drained(other));
  }

  @Test
  public void aSharedDurableSubscriptionOutlivesItsConsumers() throws Exception {
    JMSContext client = open("sharing-client");
    client.createSharedDurableConsumer(topic(), "crew");
    client.close();
    publish("a", "b", "c");

    JMSContext again = open("sharing-client");
    JMSConsumer first = again.createSharedDurableConsumer(topic(), "crew");
    JMSConsumer second = again.createSharedDurableConsumer(topic(), "crew");

    assertEquals(Set.of("a", "b", "c"), drained(first, second));
    first.close();
    second.close();
    again.unsubscribe("crew");
  }

  @Test
  public void aSharedDurableSubscriptionWithoutClientIsEverybodys() throws Exception {
    open().createSharedDurableConsumer(topic(), "everybody").close();
    publish("a");

    JMSContext other = open();
    JMSConsumer consumer = other.createSharedDurableConsumer(topic(), "everybody");

    assertEquals("a", consumer.receiveBody(String.class, LONG));
    consumer.close();
    other.unsubscribe("everybody");
  }

  private static Set<String> drained(JMSConsumer... consumers) {
    Set<String> found = new TreeSet<>();
    boolean quiet = false;
    while (!quiet) {
      quiet = true;
      for (JMSConsumer each : consumers) {
        String text = each.receiveBody(String.class, SHORT);
        if (text != null) {
          assertTrue("once", found.add(text));
          quiet = false;
        }
      }
    }
    return found;
  }

  @Test
  public void noLocalLeavesOutWhatTheConnectionItselfPublishes() throws Exception {
    JMSContext client = open("local-client");
    JMSConsumer consumer = client.createConsumer(topic(), null, true);
    client.createProducer().send(topic(), "own");
    publish("others'");

    assertEquals("others'", consumer.receiveBody(String.class, LONG));
    assertNull(consumer.receive(SHORT));
  }

  @Test
  public void selectorsChoose() throws Exception {
    JMSConsumer consumer = open().createConsumer(topic(), "text LIKE 'b%' OR JMSPriority > 8");
    publish("a", "b1", "c", "b2");

    assertEquals("b1", consumer.receiveBody(String.class, LONG));
    assertEquals("b2", consumer.receiveBody(String.class, LONG));
    assertNull(consumer.receive(SHORT));
  }

  @Test
  public void aTemporaryTopicEndsWithItsConnection() throws Exception {
    JMSContext owner = open();
    TemporaryTopic topic = owner.createTemporaryTopic();
    JMSConsumer consumer = owner.createConsumer(topic);
    JMSContext other = open();
    other.createProducer().send(topic, "a");
    assertNotNull(consumer.receive(LONG));
    owner.close();

    assertThrows(
        JMSRuntimeException.class, () -> other.createProducer().send(topic, "late"));
  }

  @Test
  public void aTransactionIsSeenByTopicsAndQueuesAtOnce() throws Exception {
    JMSConsumer consumer = open().createConsumer(topic());
    JMSContext transacted = open(JMSContext.SESSION_TRANSACTED);
    transacted.createProducer().send(topic(), "event").send(queue(), "work");
    assertNull(consumer.receive(SHORT));

    transacted.commit();

    assertEquals("event", consumer.receiveBody(String.class, LONG));
    assertEquals("work", open().createConsumer(queue()).receiveBody(String.class, LONG));
  }

  @Test
  public void aRolledBackTopicEventComesAgain() throws Exception {
    JMSContext transacted = open(JMSContext.SESSION_TRANSACTED);
    JMSConsumer consumer = transacted.createConsumer(topic());
    publish("a", "b");
    assertEquals("a", consumer.receiveBody(String.class, LONG));

    transacted.rollback();

    assertEquals("a", consumer.receiveBody(String.class, LONG));
    assertEquals("b", consumer.receiveBody(String.class, LONG));
    transacted.commit();
    assertNull(consumer.receive(SHORT));
  }

  @Test
  public void aClientIdIsTakenOnce() {
    open("only-one");

    try (JMSContext second = new JmsConnectionFactory(url()).createContext()) {
      assertThrows(
          InvalidClientIDRuntimeException.class,
          () -> {
            second.setClientID(named("only-one"));
            second.createConsumer(topic());
          });
    }
  }
}
