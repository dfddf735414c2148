import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.security.PrivilegedExceptionAction;
import java.util.Base64;
import java.util.Map;
import javax.security.auth.Subject;
import javax.security.auth.login.AppConfigurationEntry;
import javax.security.auth.login.Configuration;
import javax.security.auth.login.LoginContext;
import org.ietf.jgss.GSSContext;
import org.ietf.jgss.GSSCredential;
import org.ietf.jgss.GSSManager;

/**
 * A server that lets in who has a Kerberos ticket for it (SPNEGO), and passes what they ask to the URL behind it, with
 * their name. Prints its port. Its arguments: that URL, its principal and its keytab. It ends when its input ends.
 */
public class SpnegoDoor {
    public static void main(String[] args) throws Exception {
        String behind = args[0];
        Subject subject = logIn(args[1], args[2]);
        HttpClient client = HttpClient.newHttpClient();
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.createContext("/", exchange -> {
            try {
                String name = nameOf(subject, exchange);
                if (name != null) {
                    pass(client, behind, exchange, name);
                }
            } catch (Exception exc) {
                answer(exchange, 403, String.valueOf(exc).getBytes());
            }
        });
        server.start();
        System.out.println(server.getAddress().getPort());
        while (System.in.read() >= 0) {}
        System.exit(0);
    }

    /** The name of who asks; null: it was asked for a ticket. */
    private static String nameOf(Subject subject, HttpExchange exchange) throws Exception {
        String said = exchange.getRequestHeaders().getFirst("Authorization");
        if (said == null || !said.startsWith("Negotiate ")) {
            exchange.getResponseHeaders().set("WWW-Authenticate", "Negotiate");
            answer(exchange, 401, "<html>Authentication required</html>".getBytes());
            return null;
        }
        byte[] token = Base64.getDecoder().decode(said.substring("Negotiate ".length()).trim());
        return Subject.doAs(subject, (PrivilegedExceptionAction<String>) () -> {
            GSSContext context = GSSManager.getInstance().createContext((GSSCredential) null);
            context.acceptSecContext(token, 0, token.length);
            return context.getSrcName().toString();
        });
    }

    private static void pass(HttpClient client, String behind, HttpExchange exchange, String name) throws Exception {
        String path = exchange.getRequestURI().toString();
        String user = "user.name=" + name.split("[/@]")[0];
        byte[] body = exchange.getRequestBody().readAllBytes();
        HttpResponse<byte[]> said = client.send(
            HttpRequest.newBuilder(URI.create(behind + path + (path.contains("?") ? "&" : "?") + user))
                .method(exchange.getRequestMethod(), HttpRequest.BodyPublishers.ofByteArray(body))
                .build(),
            HttpResponse.BodyHandlers.ofByteArray());
        answer(exchange, said.statusCode(), said.body());
    }

    private static void answer(HttpExchange exchange, int status, byte[] body) throws IOException {
        exchange.sendResponseHeaders(status, body.length == 0 ? -1 : body.length);
        exchange.getResponseBody().write(body);
        exchange.close();
    }

    private static Subject logIn(String principal, String keytab) throws Exception {
        Map<String, String> options = Map.of(
            "useKeyTab", "true", "keyTab", keytab, "principal", principal, "storeKey", "true", "isInitiator", "false");
        LoginContext login = new LoginContext("door", null, null, new Configuration() {
            @Override
            public AppConfigurationEntry[] getAppConfigurationEntry(String name) {
                return new AppConfigurationEntry[] {new AppConfigurationEntry(
                    "com.sun.security.auth.module.Krb5LoginModule",
                    AppConfigurationEntry.LoginModuleControlFlag.REQUIRED, options)};
            }
        });
        login.login();
        return login.getSubject();
    }
}
