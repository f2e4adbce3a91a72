package lakewarden;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

import org.apache.paimon.Snapshot;
import org.apache.paimon.manifest.ManifestCommittable;
import org.apache.paimon.operation.FileStoreCommitImpl;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.sink.CommitMessage;
import org.apache.paimon.table.sink.CommitPreCallback;

/** One atomic commit with lineage in the snapshot's properties. Compiled by Janino: no lambdas, no generics. */
public class PaimonCommit {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final String USER = "lakewarden";

  public long commit(FileStoreTable table, List messages, String properties, long identifier) throws Exception {
    return commit(table, messages, properties, identifier, new HashMap(), null);
  }

  /**
   * Returns the snapshot's id: a later search for it may fail because a writer has expired it already.
   *
   * Commits through a write-only copy of the table: any other commit also expires snapshots by the table's
   * options. `options` apply to this commit alone, and a commit without messages changes nothing. The check
   * runs before every attempt, and throws if the attempt must not happen. If another compaction came first,
   * some catalogs would roll that one back; here this commit is lost instead. It is also lost if a file to be
   * added exists already.
   */
  public long commit(
      FileStoreTable table, List messages, String properties, long identifier, Map options, CommitPreCallback check)
      throws Exception {
    Map own = new HashMap(options);
    own.put("write-only", "true");
    FileStoreTable writing = (FileStoreTable) table.copy(own);
    FileStoreCommitImpl commit = (FileStoreCommitImpl) writing.store().newCommit(USER, writing);
    final long[] id = {-1};
    try {
      field("rollback").set(commit, null);
      List checks = new ArrayList((List) field("commitPreCallbacks").get(commit));
      if (check != null) {
        checks.add(check);
      }
      checks.add(
          new CommitPreCallback() {
            public void call(List base, List delta, List index, Snapshot next) {
              id[0] = next.id();
            }

            public void close() {}
          });
      field("commitPreCallbacks").set(commit, checks);
      commit.ignoreEmptyCommit(!messages.isEmpty());
      commit.commit(committable(messages, properties, identifier), true);
    } finally {
      commit.close();
    }
    return id[0];
  }

  private static ManifestCommittable committable(List messages, String properties, long identifier) throws Exception {
    ManifestCommittable committable = new ManifestCommittable(identifier);
    for (Iterator each = messages.iterator(); each.hasNext(); ) {
      committable.addFileCommittable((CommitMessage) each.next());
    }
    Map told = (Map) JSON.readValue(properties, Map.class);
    for (Iterator each = told.entrySet().iterator(); each.hasNext(); ) {
      Map.Entry entry = (Map.Entry) each.next();
      committable.addProperty((String) entry.getKey(), (String) entry.getValue());
    }
    return committable;
  }

  private static Field field(String name) throws Exception {
    Field field = FileStoreCommitImpl.class.getDeclaredField(name);
    field.setAccessible(true);
    return field;
  }
}
