// Removes snapshots from a table's metadata, inside the driver's JVM. Compiled by Janino like
// IcebergBridge.java; the same rules apply. Iceberg's own expireSnapshots() also drops snapshots that are old
// by the table's properties, even if not asked to. So this code uses the library's metadata builder, which
// removes exactly what it is given, and the library's commit, which deletes no files except the metadata files
// that IcebergWatch allows.
package lakewarden;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Map;
import java.util.Set;
import org.apache.iceberg.HasTableOperations;
import org.apache.iceberg.SnapshotRef;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;

public final class IcebergExpiry {
  private static final ObjectMapper JSON = new ObjectMapper();

  /**
   * One commit that drops these refs (by name, each only while it names the snapshot it was judged by) and
   * these snapshots. Refs and snapshots that no longer exist count as done. Returns {"held": [[name, id], ...]}
   * if a ref that must stay names one of the snapshots: nothing was changed. {"removed": [id, ...]}: the commit
   * succeeded, or there was nothing left to remove. {"moved": true}: `judged` is no longer the table's metadata
   * file, so the holds on snapshots must be collected again.
   */
  public String expire(Table table, String uuid, String judged, String idsJson, String refsJson) throws Exception {
    TableOperations ops = ((HasTableOperations) table).operations();
    TableMetadata base = ops.refresh();
    if (!base.uuid().equals(uuid)) {
      throw new IllegalStateException("the table was replaced by another one: " + base.uuid() + " instead of " + uuid);
    }
    if (!judged.isEmpty() && !judged.equals(base.metadataFileLocation())) {
      return "{\"moved\": true}";
    }
    Set wanted = present(base, (long[]) JSON.readValue(idsJson, long[].class));
    Map refs = refs(JSON.readTree(refsJson));
    ObjectNode answer = JSON.createObjectNode();
    ArrayNode held = answer.putArray("held");
    ArrayNode removed = answer.putArray("removed");
    TableMetadata.Builder builder = TableMetadata.buildFrom(base);
    boolean changes = false;
    Iterator each = base.refs().entrySet().iterator();
    while (each.hasNext()) {
      Map.Entry entry = (Map.Entry) each.next();
      Long id = Long.valueOf(((SnapshotRef) entry.getValue()).snapshotId());
      if (id.equals(refs.get(entry.getKey()))) {
        builder.removeRef((String) entry.getKey());
        changes = true;
      } else if (wanted.contains(id)) {
        ArrayNode row = held.addArray();
        row.add((String) entry.getKey());
        row.add(id.longValue());
      }
    }
    if (held.size() > 0) {
      return answer.toString();
    }
    if (!wanted.isEmpty()) {
      builder.removeSnapshots(wanted);
      changes = true;
    }
    if (changes) {
      ops.commit(base, builder.build());
    }
    Iterator gone = wanted.iterator();
    while (gone.hasNext()) {
      removed.add(((Long) gone.next()).longValue());
    }
    return answer.toString();
  }

  /** Whether any of these snapshots, or of these refs in their old state, still exists. */
  public boolean remaining(Table table, String idsJson, String refsJson) throws Exception {
    TableMetadata base = ((HasTableOperations) table).operations().current();
    if (!present(base, (long[]) JSON.readValue(idsJson, long[].class)).isEmpty()) {
      return true;
    }
    Iterator each = refs(JSON.readTree(refsJson)).entrySet().iterator();
    while (each.hasNext()) {
      Map.Entry entry = (Map.Entry) each.next();
      SnapshotRef now = (SnapshotRef) base.refs().get(entry.getKey());
      if (now != null && entry.getValue().equals(Long.valueOf(now.snapshotId()))) {
        return true;
      }
    }
    return false;
  }

  private static Set present(TableMetadata base, long[] ids) {
    Set found = new HashSet();
    for (int i = 0; i < ids.length; i++) {
      if (base.snapshot(ids[i]) != null) {
        found.add(Long.valueOf(ids[i]));
      }
    }
    return found;
  }

  private static Map refs(JsonNode named) {
    Map refs = new HashMap();
    Iterator names = named.fieldNames();
    while (names.hasNext()) {
      String name = (String) names.next();
      refs.put(name, Long.valueOf(named.get(name).asLong()));
    }
    return refs;
  }
}
