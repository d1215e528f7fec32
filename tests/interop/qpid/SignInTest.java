package penstock.interop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;

import jakarta.jms.JMSContext;
import jakarta.jms.JMSSecurityRuntimeException;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.junit.Test;

/** Who comes in over TLS: by SCRAM-SHA-256, by PLAIN, by certificate; and who does not. */
public final class SignInTest extends RealmTest {
  private static String url(String mechanism, String more) {
    String trust = "transport.trustStoreLocation=" + System.getProperty("realm.trust");
    String password = "transport.trustStorePassword=secret";
    String sasl = "amqp.saslMechanisms=" + mechanism;
    String one = url() + "?" + String.join("&", trust, password, sasl) + more;
    String failover = System.getProperty("realm.failover", "");
    return failover.isEmpty() ? one : "failover:(" + one + ")?" + failover;
  }

  private JMSContext signIn(String url, String user, String password) {
    JmsConnectionFactory factory = new JmsConnectionFactory(url);
    return keep(user == null ? factory.createContext() : factory.createContext(user, password));
  }

  private void sendsAndReceives(JMSContext context) {
    context.createProducer().send(queue(), "x");

    assertEquals("x", context.createConsumer(queue()).receiveBody(String.class, LONG));
  }

  @Test
  public void byScram() {
    sendsAndReceives(signIn(url("SCRAM-SHA-256", ""), "ann", "secret"));
  }

  @Test
  public void byPlain() {
    sendsAndReceives(signIn(url("PLAIN", ""), "ann", "secret"));
  }

  @Test
  public void byCertificate() {
    String key = "&transport.keyStoreLocation=" + System.getProperty("realm.key");
    sendsAndReceives(
        signIn(url("EXTERNAL", key + "&transport.keyStorePassword=secret"), null, null));
  }

  @Test
  public void byToken() {
    sendsAndReceives(signIn(url("XOAUTH2", ""), "ann", System.getProperty("realm.token")));
  }

  @Test
  public void notWithAnotherPassword() {
    for (String mechanism : new String[] {"SCRAM-SHA-256", "PLAIN", "XOAUTH2"}) {
      assertThrows(
          JMSSecurityRuntimeException.class,
          () -> signIn(url(mechanism, ""), "ann", "wrong").start());
    }
  }

  @Test
  public void notWithoutAName() {
    assertThrows(
        JMSSecurityRuntimeException.class, () -> signIn(url("ANONYMOUS", ""), null, null).start());
  }
}
