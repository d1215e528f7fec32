package penstock.interop;

import jakarta.jms.JMSContext;
import jakarta.jms.Message;
import jakarta.jms.Queue;
import jakarta.jms.Topic;
import java.util.ArrayList;
import java.util.List;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.apache.qpid.jms.JmsQueue;
import org.apache.qpid.jms.JmsTopic;
import org.junit.After;
import org.junit.Rule;
import org.junit.rules.TestName;
import org.junit.rules.Timeout;

/** What the tests share: connections that are closed in the end, and names of their own. */
public abstract class RealmTest {
  /** How many times longer than usual everything may take: a cluster moves meanwhile. */
  private static final int PATIENT = Integer.getInteger("realm.patient", 1);

  /** How long a message that has to come may take. */
  protected static final long LONG = 10_000 * PATIENT;

  /** How long nothing has to come. */
  protected static final long SHORT = 300;

  @Rule public final TestName test = new TestName();

  @Rule public final Timeout patience = Timeout.seconds(60 * PATIENT);

  /** What names of one run have and those of no other. */
  private static final String RUN = "_" + Long.toString(System.currentTimeMillis(), 36);

  private final List<JMSContext> opened = new ArrayList<>();

  /** Where the realm listens for AMQP. */
  protected static String url() {
    return System.getProperty("realm.amqp");
  }

  protected JMSContext open() {
    return open(JMSContext.AUTO_ACKNOWLEDGE);
  }

  protected JMSContext open(int mode) {
    return keep(new JmsConnectionFactory(url()).createContext(mode));
  }

  /** A connection that hands over nothing that was delivered before. */
  protected JMSContext openPicky() {
    String policy = "jms.redeliveryPolicy.maxRedeliveries=0";
    policy = (url().contains("?") ? "&" : "?") + policy;
    return keep(new JmsConnectionFactory(url() + policy).createContext());
  }

  /** A connection of a client with a name, which is what durable subscriptions belong to. */
  protected JMSContext open(String client) {
    JMSContext context = new JmsConnectionFactory(url()).createContext();
    context.setClientID(named(client));
    return keep(context);
  }

  /** The name of a client, which no client of another run has. */
  protected static String named(String client) {
    return client + RUN;
  }

  protected JMSContext keep(JMSContext context) {
    opened.add(context);
    return context;
  }

  /** A queue that no other test has. Channels and queues have one namespace: not the topic's name. */
  protected Queue queue() {
    return new JmsQueue(name() + "_queue");
  }

  /** A topic that no other test has. */
  protected Topic topic() {
    return new JmsTopic(name() + "_topic");
  }

  protected String name() {
    return getClass().getSimpleName() + "_" + test.getMethodName() + RUN;
  }

  /** The text of a message, or null when there is no message. */
  protected static String text(Message message) throws Exception {
    return message == null ? null : message.getBody(String.class);
  }

  @After
  public void closeAll() {
    opened.forEach(JMSContext::close);
  }
}
