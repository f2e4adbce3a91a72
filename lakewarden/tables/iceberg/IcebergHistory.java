// Reads the changes of a past snapshot inside the driver's JVM: the data files it exchanged, and the deletes
// that applied. Compiled by Janino together with IcebergBridge.java; the same rules apply.
package lakewarden;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.Schema;
import org.apache.iceberg.SchemaParser;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableScan;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.CloseableIterator;

public final class IcebergHistory {
  private static final ObjectMapper JSON = new ObjectMapper();

  /** The schema of a snapshot and the data files it exchanged: {"schema", "removed": [file, ...], "added": [file, ...]}. */
  public String changes(Table table, long snapshotId) throws Exception {
    Snapshot snapshot = table.snapshot(snapshotId);
    ObjectNode answer = JSON.createObjectNode();
    answer.put("schema", SchemaParser.toJson(schema(table, snapshot)));
    describeAll(answer.putArray("removed"), snapshot.removedDataFiles(table.io()));
    describeAll(answer.putArray("added"), snapshot.addedDataFiles(table.io()));
    return answer.toString();
  }

  /** Snapshots of format version 1 may not name their schema; the table's own schema is the nearest guess. */
  private static Schema schema(Table table, Snapshot snapshot) {
    Object schema = snapshot.schemaId() == null ? null : table.schemas().get(snapshot.schemaId());
    return schema == null ? table.schema() : (Schema) schema;
  }

  private static void describeAll(ArrayNode rows, Iterable files) {
    Iterator each = files.iterator();
    while (each.hasNext()) {
      describe(rows.addObject(), (DataFile) each.next());
    }
  }

  private static void describe(ObjectNode row, DataFile file) {
    row.put("path", file.location());
    row.put("format", file.format().name().toLowerCase());
    row.put("bytes", file.fileSizeInBytes());
    row.put("records", file.recordCount());
    row.put("sequence_number", file.dataSequenceNumber() == null ? 0L : file.dataSequenceNumber().longValue());
    row.put("spec_id", file.specId());
    row.put("row_groups", file.splitOffsets() == null ? 1 : Math.max(1, file.splitOffsets().size()));
    row.put("encrypted", file.keyMetadata() != null);
  }

  /**
   * These data files as of a snapshot, with the deletes that apply to each, by their index in the list of
   * deletes: {"files": [{..., "deletes": [place, ...]}, ...], "deletes": [...]}. Only these files are kept in
   * memory, however large the table is.
   */
  public String planned(Table table, long snapshotId, String pathsJson) throws Exception {
    Set wanted = new HashSet(Arrays.asList((String[]) JSON.readValue(pathsJson, String[].class)));
    ObjectNode answer = JSON.createObjectNode();
    ArrayNode files = answer.putArray("files");
    ArrayNode deletes = answer.putArray("deletes");
    Map places = new HashMap();
    CloseableIterable tasks = ((TableScan) table.newScan().useSnapshot(snapshotId).ignoreResiduals()).planFiles();
    try {
      CloseableIterator each = tasks.iterator();
      while (each.hasNext()) {
        FileScanTask task = (FileScanTask) each.next();
        DataFile file = (DataFile) task.file();
        if (wanted.contains(file.location())) {
          ObjectNode row = files.addObject();
          describe(row, file);
          addPlaces(row.putArray("deletes"), task.deletes(), places, deletes);
        }
      }
    } finally {
      tasks.close();
    }
    return answer.toString();
  }

  private static void addPlaces(ArrayNode row, List applying, Map places, ArrayNode deletes) {
    for (int i = 0; i < applying.size(); i++) {
      DeleteFile file = (DeleteFile) applying.get(i);
      String key = IcebergBridge.key(file);
      Integer place = (Integer) places.get(key);
      if (place == null) {
        place = Integer.valueOf(places.size());
        places.put(key, place);
        IcebergBridge.describeDelete(deletes.addObject(), file);
      }
      row.add(place.intValue());
    }
  }
}
