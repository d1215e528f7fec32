package penstock.interop;

import static org.junit.Assert.assertEquals;

import jakarta.jms.Queue;
import jakarta.jms.Topic;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Hashtable;
import java.util.List;
import javax.naming.Context;
import javax.naming.InitialContext;
import javax.naming.NamingException;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.junit.Test;

/** The objects that Qpid JMS finds in properties of {@code penstock topology jndi}. */
public final class JndiTest {
  /** The context of a properties file. */
  private static Context context(String file) throws NamingException {
    Hashtable<String, String> environment = new Hashtable<>();
    environment.put(
        Context.INITIAL_CONTEXT_FACTORY, "org.apache.qpid.jms.jndi.JmsInitialContextFactory");
    environment.put(Context.PROVIDER_URL, file);
    return new InitialContext(environment);
  }

  /** Lines with a kind, a lookup name and the name of a destination, separated by tabs. */
  private static List<String> expected() throws Exception {
    return Files.readAllLines(Path.of(System.getProperty("realm.names")));
  }

  @Test
  public void everyDestinationIsFoundByItsLookupName() throws Exception {
    Context names = context(System.getProperty("realm.jndi"));
    for (String line : expected()) {
      String[] parts = line.split("\t");
      Object found = names.lookup(parts[1]);
      String name =
          parts[0].equals("queue")
              ? ((Queue) found).getQueueName()
              : ((Topic) found).getTopicName();
      assertEquals(line, parts[2], name);
    }
    assertEquals(Integer.getInteger("realm.count").intValue(), expected().size());
  }

  @Test
  public void everyConnectionFactoryHasTheUrl() throws Exception {
    Context names = context(System.getProperty("realm.jndi"));
    for (String name : System.getProperty("realm.factories").split(",")) {
      JmsConnectionFactory factory = (JmsConnectionFactory) names.lookup(name);
      assertEquals("amqps://shop.example:5672", factory.getRemoteURI());
      assertEquals("till", factory.getClientID());
    }
  }

  @Test
  public void aPasswordIsAVariableOfTheProgram() throws Exception {
    System.setProperty("SHOP_PASSWORD", "a&b=c%");
    Context names = context(System.getProperty("realm.user"));
    JmsConnectionFactory factory = (JmsConnectionFactory) names.lookup("ConnectionFactory");
    assertEquals("shop", factory.getUsername());
    assertEquals("a&b=c%", factory.getPassword());
  }

  @Test
  public void linesOfAUserLeadToTheSameDestinations() throws Exception {
    Context names = context(System.getProperty("realm.more"));
    assertEquals("shop/orders", ((Queue) names.lookup("jms/OrderQueue")).getQueueName());
    assertEquals("shop/orders", ((Queue) names.lookup("/shop/orders")).getQueueName());
    assertEquals("shop/prices", ((Topic) names.lookup("Prices")).getTopicName());
    assertEquals(
        "shop/prices", ((Topic) names.lookup("dynamicTopics/shop/prices")).getTopicName());
  }
}
