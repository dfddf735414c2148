package coordd;

import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Timer;
import java.util.TimerTask;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.logging.Logger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.TrustManagerFactory;

/**
 * The guard of coordd for Spark drivers in Java and Scala: one file that needs Java 8 or newer, and nothing else.
 *
 * <p>Compile it with the driver. The first line of a driver is {@code Guard.gate()}; what it writes to a table, it writes
 * in {@code Guard.transact(of -> ...)}. docs/spark.md has an example. Without a clear answer the program is not the
 * owner of its run: {@code gate} ends it, {@code stillOwner} returns false, and {@code transact} throws
 * LeaseLostException without a call of the program's code.
 *
 * <p>A driver on a cluster asks the guard listener of any node, as coordd/guard.py does (docs/protocol.md). A driver on
 * the node asks its runner, whose socket is one that Java cannot reach: guard.py asks for it (COORDD_GUARD_COMMAND).
 */
public final class Guard {
  private static final Logger LOG = Logger.getLogger("coordd.guard");

  private static final double ANSWER_S = 10.0; // the longest wait for the runner
  private static final double LISTENER_S = 5.0; // the longest wait for one listener, of which there may be others
  private static final double OWNER_S = 10.0; // the longest wait of stillOwner
  private static final double COMMIT_S = 60.0; // the longest wait of transact
  private static final double GATE_S = 300.0; // the longest wait of a driver that starts, while nobody holds its run
  private static final long AGAIN_MS = 1000;
  private static final int ANSWER_BYTES_MAX = 8192;

  private static final String GREETING = "coordd-guard 1 ";
  private static final String LOCAL = "abstract:";
  private static final String[] NAMES = {"RUN", "JOB", "ATTEMPT", "TOKEN", "NONCE", "GUARD"};
  private static final String[] CONF = {"run", "job", "attempt", "token", "token.nonce", "guard"};
  private static final List<String> WORDS = Arrays.asList("ok", "committed", "moved", "stale", "unknown", "refused");
  private static final Pattern CONTAINER = Pattern.compile("container_(?:e\\d+_)?(\\d+_\\d+)_\\d+_\\d+");

  private Guard() {}

  /** This attempt is not the owner of its run, or nobody can tell. Nothing was written. */
  public static final class LeaseLostException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    LeaseLostException(String why) {
      super(why);
    }
  }

  /** What a table needs to take the output of a run once (Delta: txnAppId and txnVersion). */
  public static final class Transaction {
    public final String run;
    public final int attempt;
    public final long token;
    public final String appId;
    public final int version = 1;

    Transaction(Grant grant) {
      run = grant.run;
      attempt = grant.attempt;
      token = grant.token;
      appId = "coordd:" + grant.run;
    }
  }

  // ---- for programs

  /**
   * The first line of a driver: ends the JVM with exit code 1 and a sentence, unless this attempt holds its run.
   *
   * <p>A submission may reach the cluster after its run was launched again. While nobody holds the run, this waits.
   */
  public static void gate() {
    gate(GATE_S);
  }

  /** The same with another limit, in seconds. */
  public static void gate(double timeoutS) {
    String why = whyNot("gate", " must not begin any more: ", timeoutS);
    if (!why.isEmpty()) {
      System.err.println("coordd.guard: " + why + ". The program ends before it has done anything");
      System.exit(1);
    }
  }

  /** True if this attempt holds its run now; without a clear yes false, with the reason in the log. */
  public static boolean stillOwner() {
    return stillOwner(OWNER_S);
  }

  /** The same with another limit, in seconds. */
  public static boolean stillOwner(double timeoutS) {
    String why = whyNot("owner", ": ", timeoutS);
    if (!why.isEmpty()) {
      LOG.warning("not the owner: " + why);
    }
    return why.isEmpty();
  }

  /** Why this attempt does not hold its run, or nobody can tell, behind its name and {@code link}; "" if it does. */
  private static String whyNot(String what, String link, double timeoutS) {
    try {
      Grant grant = Grant.here();
      Answer answer = ask(grant, grant.isLocal() ? "owner" : what, new Deadline(timeoutS), 0);
      return answer.holds() ? "" : grant.name() + link + answer.why;
    } catch (LeaseLostException exc) {
      return exc.getMessage();
    }
  }

  /**
   * Calls {@code write}, which writes to a table, if this attempt is the owner; returns what it returns.
   *
   * <p>{@code write} must be one transaction, and the table must take that of a run once, from any attempt: if one died
   * after its commit, the next one calls {@code write} too. Throws LeaseLostException; {@code write} was not called then.
   */
  public static <T> T transact(Function<Transaction, T> write) {
    return transact(write, COMMIT_S);
  }

  /** The same with another limit, in seconds. */
  public static <T> T transact(Function<Transaction, T> write, double timeoutS) {
    Grant grant = Grant.here();
    Answer answer = commit(grant, new Deadline(timeoutS));
    if (!answer.holds()) {
      throw new LeaseLostException(grant.name() + " may not publish: " + answer.why);
    }
    LOG.info(grant.name() + ": writes under the commit");
    return write.apply(new Transaction(grant));
  }

  // ---- the right of this program

  /** What coordd has put into the conf of the driver, or into the environment of the program. */
  private static final class Grant {
    final String run;
    final int attempt;
    final long token;
    final String nonce;
    final String address; // of the runner, or of listeners, separated by commas
    final String authority; // certificates in PEM that vouch for the listeners; "": the system's
    final String application; // the id of this driver on its cluster, or ""

    private Grant(String[] said, String authority, String application) {
      run = said[0];
      try {
        attempt = Integer.parseInt(said[2]);
        token = Long.parseLong(said[3]);
      } catch (NumberFormatException exc) {
        throw new LeaseLostException("attempt and token must be whole numbers: " + exc.getMessage());
      }
      nonce = said[4];
      address = said[5];
      this.authority = authority;
      this.application = application;
    }

    static Grant here() {
      Map<String, String> environ = System.getenv();
      boolean inConf = text(environ.get("COORDD_RUN")).isEmpty() && !property("spark.coordd.run").isEmpty();
      String[] said = new String[NAMES.length];
      List<String> missing = new ArrayList<>();
      for (int i = 0; i < said.length; i++) {
        String name = inConf ? "spark.coordd." + CONF[i] : "COORDD_" + NAMES[i];
        said[i] = inConf ? property(name) : text(environ.get(name));
        if (said[i].isEmpty()) {
          missing.add(name);
        }
      }
      if (!missing.isEmpty()) {
        throw new LeaseLostException(
            String.join(", ", missing)
                + " not set: coordd did not start this program, or no [guard] of coordd.toml names listeners for drivers"
                + " on a cluster");
      }
      String authority = property("spark.coordd.guard.authority");
      return new Grant(
          said, authority.isEmpty() ? text(environ.get("COORDD_GUARD_AUTHORITY")) : authority, applicationOf(environ));
    }

    boolean isLocal() {
      return address.startsWith(LOCAL);
    }

    String name() {
      return run + ", attempt " + attempt;
    }
  }

  /** The id of this driver, as its cluster manager shows it: of YARN's application, or of Kubernetes' pod. */
  private static String applicationOf(Map<String, String> environ) {
    for (String name : new String[] {"spark.kubernetes.driver.pod.name", "spark.yarn.app.id"}) {
      if (!property(name).isEmpty()) {
        return property(name);
      }
    }
    Matcher container = CONTAINER.matcher(text(environ.get("CONTAINER_ID")));
    String host = text(environ.get("HOSTNAME"));
    return container.matches() ? "application_" + container.group(1) : host.startsWith("coordd-") ? host : "";
  }

  /** Of Spark's conf: YARN and Kubernetes make it the system properties of a driver in mode cluster. */
  private static String property(String name) {
    return text(System.getProperty(name));
  }

  private static String text(String value) {
    return value == null ? "" : value;
  }

  // ---- the runner, asked by guard.py

  /** Another process asks: its answer counts only if this one reads it in time. */
  private static Answer answerOfRunner(Grant grant, String what, Deadline until) throws IOException {
    String program = text(System.getenv("COORDD_GUARD_COMMAND"));
    if (program.isEmpty()) {
      throw new LeaseLostException(
          grant.name() + ": COORDD_GUARD_COMMAND not set: is coordd of an earlier version, or has its path a space?");
    }
    List<String> words = new ArrayList<>(Arrays.asList(program.split(" ")));
    words.addAll(Arrays.asList("ask", what));
    Process asks = new ProcessBuilder(words).redirectErrorStream(true).start();
    try {
      asks.getOutputStream().close();
      if (!asks.waitFor(until.leftMs(), TimeUnit.MILLISECONDS)) {
        throw new SocketTimeoutException("no answer in time");
      }
      String last = "";
      try (BufferedReader said =
          new BufferedReader(new InputStreamReader(asks.getInputStream(), StandardCharsets.UTF_8))) {
        for (String line = said.readLine(); line != null; line = said.readLine()) {
          last = line;
        }
      }
      until.leftMs();
      if (asks.exitValue() != 0) {
        throw new IOException(last);
      }
      return Answer.of(Json.read(last));
    } catch (InterruptedException exc) {
      Thread.currentThread().interrupt();
      throw new LeaseLostException(grant.name() + ": the question was interrupted");
    } finally {
      asks.destroyForcibly();
    }
  }

  // ---- a listener of a node

  private static final class Answer {
    final String word;
    final long token;
    final String why;

    Answer(String word, long token, String why) {
      this.word = word;
      this.token = token;
      this.why = why;
    }

    static Answer of(Map<String, Object> said) {
      Object word = said.get("word");
      Object token = said.get("token");
      Object why = said.get("why");
      if (!WORDS.contains(word) || !(token instanceof Long) || !(why instanceof String)) {
        throw new IllegalArgumentException("its answer says nothing that is known here");
      }
      return new Answer((String) word, (Long) token, (String) why);
    }

    boolean holds() {
      return word.equals("ok") || word.equals("committed");
    }
  }

  /** Seconds that are left. Both clocks count: one stands still while the machine sleeps, the other may be set. */
  private static final class Deadline {
    private final double limitS;
    private final long nanos = System.nanoTime();
    private final long millis = System.currentTimeMillis();

    Deadline(double limitS) {
      this.limitS = limitS;
    }

    double leftS() {
      return limitS - Math.max((System.nanoTime() - nanos) / 1e9, (System.currentTimeMillis() - millis) / 1e3);
    }

    Deadline within(double otherS) {
      return new Deadline(Math.min(leftS(), otherS));
    }

    int leftMs() throws SocketTimeoutException {
      double leftS = leftS();
      if (leftS <= 0) {
        throw new SocketTimeoutException("no answer in time");
      }
      return Math.max(1, (int) Math.min(leftS * 1000, Integer.MAX_VALUE));
    }
  }

  /** The run is committed under the token that holds it: ours, or that of the attempt that adopted the application. */
  private static Answer commit(Grant grant, Deadline until) {
    long holder = grant.token;
    if (!grant.isLocal()) {
      Answer owner = ask(grant, "owner", until, 0);
      if (!owner.holds()) {
        return owner;
      }
      holder = owner.word.equals("ok") ? owner.token : holder;
    }
    while (true) {
      Answer answer = ask(grant, "commit", until, holder);
      if (!answer.word.equals("moved") || answer.token <= holder) {
        return answer;
      }
      holder = answer.token;
    }
  }

  private static Answer ask(Grant grant, String what, Deadline until, long holder) {
    List<String> addresses = new ArrayList<>();
    for (String one : grant.address.split(",")) {
      if (!one.trim().isEmpty()) {
        addresses.add(one.trim());
      }
    }
    String whose = grant.isLocal() ? "the runner" : "a listener";
    String why = "no address of a listener";
    boolean heard = false;
    while (true) {
      int refused = 0;
      for (String address : addresses) {
        try {
          Answer answer =
              grant.isLocal()
                  ? answerOfRunner(grant, what, until.within(ANSWER_S))
                  : askOnce(grant, address, what, holder, until.within(LISTENER_S));
          if (answer.word.equals("refused")) {
            refused++;
            why = whose + " refuses the question: " + answer.why;
          } else if (answer.word.equals("unknown")) {
            why = answer.why;
          } else {
            return answer;
          }
        } catch (IOException | GeneralSecurityException | IllegalArgumentException exc) {
          if (!heard || until.leftS() > 0) { // the last question has often no time left, and tells nothing
            why = whose + " does not answer: " + exc + (grant.isLocal() ? "" : " (" + address + ")");
          }
        }
        heard = true;
      }
      if (refused == addresses.size()) { // else another one may know
        throw new LeaseLostException(grant.name() + ": " + why);
      }
      if (until.leftS() * 1000 <= AGAIN_MS) {
        throw new LeaseLostException(grant.name() + ": nobody can tell who owns the run: " + why);
      }
      try {
        Thread.sleep(AGAIN_MS);
      } catch (InterruptedException exc) {
        Thread.currentThread().interrupt();
        throw new LeaseLostException(grant.name() + ": the question was interrupted");
      }
    }
  }

  private static Answer askOnce(Grant grant, String address, String what, long holder, Deadline until)
      throws IOException, GeneralSecurityException {
    byte[] random = new byte[16];
    new SecureRandom().nextBytes(random);
    String ident = hex(random);
    String question =
        "{\"ask\":" + Json.quoted(what) + ",\"run\":" + Json.quoted(grant.run) + ",\"attempt\":" + grant.attempt
            + ",\"token\":" + grant.token + ",\"id\":" + Json.quoted(ident) + ",\"application\":"
            + Json.quoted(grant.application) + ",\"holder\":" + holder + "}";
    Timer timer = new Timer("coordd.guard", true);
    try (Socket plain = new Socket()) {
      // Each read of a socket has a limit of its own, and TLS needs many: all of them end when the time is over.
      timer.schedule(closing(plain), until.leftMs());
      Socket socket = connected(plain, grant, address, until);
      String greeting = line(socket, until);
      if (!greeting.startsWith(GREETING)) {
        throw new IllegalArgumentException("its greeting is of another version");
      }
      // A listener names a text of its own, so that nobody can ask the same again later.
      String purpose = "ask " + greeting.substring(GREETING.length());
      String asked = GREETING + mac(grant.nonce, purpose, question) + " " + question + "\n";
      socket.getOutputStream().write(asked.getBytes(StandardCharsets.UTF_8));
      socket.getOutputStream().flush();
      String answer = line(socket, until);
      until.leftMs(); // an answer that this process read long after its question counts for nothing
      return understood(grant, answer, ident);
    } finally {
      timer.cancel();
    }
  }

  private static TimerTask closing(Socket socket) {
    return new TimerTask() {
      @Override
      public void run() {
        try {
          socket.close();
        } catch (IOException exc) {
          LOG.fine("a socket cannot be closed: " + exc);
        }
      }
    };
  }

  private static Answer understood(Grant grant, String line, String ident) throws GeneralSecurityException {
    int space = line.indexOf(' ', GREETING.length());
    if (!line.startsWith(GREETING) || space < 0) {
      throw new IllegalArgumentException("its answer is of another version");
    }
    String proof = line.substring(GREETING.length(), space);
    String body = line.substring(space + 1);
    Map<String, Object> answer = Json.read(body);
    Object word = answer.get("word");
    if (!MessageDigest.isEqual(bytes(proof), bytes(mac(grant.nonce, "answer", body)))
        && !"refused".equals(word) && !"unknown".equals(word)) { // a listener may not know the nonce
      throw new IllegalArgumentException("its answer has no proof of the nonce");
    }
    // A question that could not be read has no id. Only "refused" may come without it.
    if (!ident.equals(answer.get("id")) && (answer.get("id") != null || !"refused".equals(word))) {
      throw new IllegalArgumentException("its answer is to another question");
    }
    return Answer.of(answer);
  }

  private static Socket connected(Socket plain, Grant grant, String address, Deadline until)
      throws IOException, GeneralSecurityException {
    int end = address.indexOf("://");
    int colon = address.lastIndexOf(':');
    String scheme = end < 0 ? "" : address.substring(0, end);
    if (!(scheme.equals("tcp") || scheme.equals("tls")) || colon <= end + 3) {
      throw new IllegalArgumentException("expected an address of this version, found " + address);
    }
    String host = address.substring(end + 3, colon).replaceAll("[\\[\\]]", "");
    int port = Integer.parseInt(address.substring(colon + 1));
    plain.connect(new InetSocketAddress(host, port), until.leftMs());
    if (scheme.equals("tcp")) {
      return plain;
    }
    SSLSocket secure = (SSLSocket) context(grant).getSocketFactory().createSocket(plain, host, port, true);
    SSLParameters parameters = secure.getSSLParameters();
    parameters.setEndpointIdentificationAlgorithm("HTTPS"); // the certificate must be that host's
    secure.setSSLParameters(parameters);
    secure.setSoTimeout(until.leftMs());
    secure.startHandshake();
    return secure;
  }

  private static SSLContext context(Grant grant) throws IOException, GeneralSecurityException {
    if (grant.authority.isEmpty()) {
      return SSLContext.getDefault();
    }
    KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null, null);
    CertificateFactory factory = CertificateFactory.getInstance("X.509");
    int number = 0;
    for (Certificate one : factory.generateCertificates(new ByteArrayInputStream(bytes(grant.authority)))) {
      store.setCertificateEntry("authority" + number++, one);
    }
    TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    trust.init(store);
    SSLContext context = SSLContext.getInstance("TLS");
    context.init(null, trust.getTrustManagers(), null);
    return context;
  }

  /** A line without its end. */
  private static String line(Socket socket, Deadline until) throws IOException {
    InputStream input = socket.getInputStream();
    ByteArrayOutputStream data = new ByteArrayOutputStream();
    while (true) {
      socket.setSoTimeout(until.leftMs());
      int one = input.read();
      if (one == '\n') {
        return new String(data.toByteArray(), StandardCharsets.UTF_8);
      }
      if (one < 0 || data.size() >= ANSWER_BYTES_MAX) {
        throw new IllegalArgumentException("its answer ends after " + data.size() + " bytes");
      }
      data.write(one);
    }
  }

  private static String mac(String nonce, String purpose, String body) throws GeneralSecurityException {
    Mac mac = Mac.getInstance("HmacSHA256");
    mac.init(new SecretKeySpec(bytes(nonce), "HmacSHA256"));
    mac.update(bytes(purpose));
    mac.update((byte) 0);
    return hex(mac.doFinal(bytes(body)));
  }

  private static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  private static String hex(byte[] data) {
    StringBuilder text = new StringBuilder();
    for (byte one : data) {
      text.append(String.format("%02x", one));
    }
    return text.toString();
  }

  /** One flat JSON object of texts, whole numbers and null: all that a listener says. Others are refused. */
  private static final class Json {
    private final String text;
    private int at;

    private Json(String text) {
      this.text = text;
    }

    static String quoted(String value) {
      StringBuilder out = new StringBuilder("\"");
      for (char one : value.toCharArray()) {
        out.append(
            one < ' ' || one > '~' || one == '"' || one == '\\' ? String.format("\\u%04x", (int) one) : String.valueOf(one));
      }
      return out.append('"').toString();
    }

    static Map<String, Object> read(String text) {
      Json json = new Json(text);
      Map<String, Object> found = new HashMap<>();
      json.expect('{');
      while (json.next() != '}') {
        if (!found.isEmpty()) {
          json.expect(',');
        }
        String name = json.string();
        json.expect(':');
        found.put(name, json.value());
      }
      json.expect('}');
      if (json.next() != 0) {
        throw json.damaged();
      }
      return found;
    }

    private char next() {
      while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
        at++;
      }
      return at < text.length() ? text.charAt(at) : 0;
    }

    private void expect(char wanted) {
      if (next() != wanted) {
        throw damaged();
      }
      at++;
    }

    private Object value() {
      if (next() == '"') {
        return string();
      }
      int begin = at;
      while (at < text.length() && ",}: \t".indexOf(text.charAt(at)) < 0) {
        at++;
      }
      String word = text.substring(begin, at);
      return word.equals("null") ? null : (Object) Long.parseLong(word);
    }

    private String string() {
      expect('"');
      StringBuilder out = new StringBuilder();
      while (at < text.length()) {
        char one = text.charAt(at++);
        if (one == '"') {
          return out.toString();
        }
        if (one == '\\') {
          one = escaped();
        }
        out.append(one);
      }
      throw damaged();
    }

    private char escaped() {
      char kind = at < text.length() ? text.charAt(at++) : 0;
      if (kind == 'u' && at + 4 <= text.length()) {
        at += 4;
        return (char) Integer.parseInt(text.substring(at - 4, at), 16);
      }
      int index = "\"\\/bfnrt".indexOf(kind);
      if (index < 0 || kind == 0) {
        throw damaged();
      }
      return "\"\\/\b\f\n\r\t".charAt(index);
    }

    private IllegalArgumentException damaged() {
      return new IllegalArgumentException("its answer is not JSON of this version, near character " + at);
    }
  }
}
